"use strict";
// Reads the API and shows it. Whatever comes from the cluster is set as text, never as markup.

const REFRESH_MS = 2000;
let token = sessionStorage.getItem("cleancut-token") || "";
let timer = null;

async function read(path) {
  const response = await fetch(path, { headers: { Authorization: `Bearer ${token}` }, cache: "no-store" });
  const document_ = await response.json();
  if (!response.ok) {
    const error = document_.error || {};
    throw new Error([error.message, error.hint].filter(Boolean).join(": ") || `HTTP ${response.status}`);
  }
  return document_;
}

function fill(id, rows) {
  const body = document.getElementById(id);
  body.replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    for (const [text, state] of cells) {
      const cell = document.createElement("td");
      cell.textContent = text === null || text === undefined ? "" : String(text);
      if (state) cell.dataset.state = state;
      row.append(cell);
    }
    return row;
  }));
}

const milliseconds = (value) => (value === null || value === undefined ? "" : `${value} ms`);
const time = (value) => (value ? new Date(value).toLocaleTimeString() : "");

function say(text) {
  document.getElementById("summary").textContent = text;
}

async function refresh() {
  try {
    const [status, epochs, participants] = await Promise.all(
      [read("/v1/status"), read("/v1/epochs?limit=25"), read("/v1/participants")]);
    say(`Cluster ${status.cluster}: ${status.epochs.committed} epochs committed, ${status.epochs.aborted} aborted, `
      + `${status.participants.up} of ${status.participants.count} participants up, `
      + (status.leader ? `${status.leader} leads in term ${status.term}` : "nobody leads"));
    fill("epochs", epochs.epochs.map((each) => [
      [each.epoch], [each.state, each.state], [each.reason], [time(each.started_at_ms)], [milliseconds(each.duration_ms)],
      [each.state_bytes], [each.in_flight],
      [each.abort ? [each.abort.participant, each.abort.phase, each.abort.cause].filter(Boolean).join(": ") : ""]]));
    fill("participants", participants.participants.map((each) => [
      [each.id], [each.state, each.state], [each.session], [each.agents.join(", ")], [each.address],
      [milliseconds(each.heartbeat_age_ms)]]));
    fill("coordinators", status.coordinators.map((each) => [
      [each.id], [each.leader ? "leader" : "follower"], [each.address],
      [each.up ? "up" : "down", each.up ? "up" : "down"]]));
  } catch (error) {
    say(error.message);
  }
  timer = setTimeout(refresh, REFRESH_MS);
}

document.getElementById("access").addEventListener("submit", (event) => {
  event.preventDefault();
  token = document.getElementById("token").value.trim();
  sessionStorage.setItem("cleancut-token", token);
  clearTimeout(timer);
  refresh();
});
if (token) refresh();
