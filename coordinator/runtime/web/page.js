"use strict";
// Reads the API and shows it. Whatever comes from the cluster is set as text, never as markup, with characters that a
// reader cannot see (controls, direction marks) spelled out.

const EPOCHS_SHOWN = 25;
const POLL_MS = 5000; // while no stream of events says that there is something new
const SETTLE_MS = 150; // one commit is several events: one refresh for all of them
const TOKEN = "cleancut-token";

const element = (id) => document.getElementById(id);
const state = { token: sessionStorage.getItem(TOKEN) || "", shown: EPOCHS_SHOWN, detail: null, run: 0, due: null, streaming: false };

// --- text -----------------------------------------------------------------------------------------------------------

const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;
const text = (value) => (value === null || value === undefined ? "" : String(value)).replace(UNSEEN,
  (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);

function span(ms) {
  if (ms === null || ms === undefined) return "";
  if (ms < 10 && ms % 1) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60000)} min ${String(Math.floor(ms / 1000) % 60).padStart(2, "0")} s`;
}

function size(bytes) {
  if (bytes === null || bytes === undefined) return "";
  if (bytes < 1000) return `${bytes} B`;
  const units = ["kB", "MB", "GB", "TB"];
  let amount = bytes / 1000, unit = 0;
  while (amount >= 999.95 && unit < units.length - 1) { amount /= 1000; unit += 1; }
  return `${amount.toFixed(1)} ${units[unit]}`;
}

// The same clock as the command line's: UTC.
const moment = (ms) => (ms ? `${new Date(ms).toISOString().slice(0, 19).replace("T", " ")}Z` : "");
const listed = (names, most = 6) =>
  names.slice(0, most).join(", ") + (names.length > most ? ` and ${names.length - most} more` : "");

function abortLine(abort) {
  if (!abort) return "";
  const first = (abort.waiting || [])[0];
  if (abort.phase === "lost") {
    const where = first && first.participant === abort.participant ? ` in phase ${first.phase}` : "";
    return `${abort.participant} was lost${where}: ${abort.cause}`;
  }
  if (abort.phase === "operator") return `by hand: ${abort.cause}`;
  return `${abort.participant || "the leader"} in phase ${abort.phase}: ${abort.cause}`;
}

// --- elements -------------------------------------------------------------------------------------------------------

const made = (tag, content, more = {}) => Object.assign(document.createElement(tag), { textContent: text(content) }, more);

function cell(content, { number, words, mark } = {}) {
  const found = document.createElement("td");
  if (content instanceof Node) found.append(content); else found.textContent = text(content);
  if (number) found.className = "number";
  if (words) found.className = "words";
  if (mark) found.dataset.state = mark;
  return found;
}

function row(...cells) {
  const found = document.createElement("tr");
  found.append(...cells);
  return found;
}

function rows(id, found, columns, empty) {
  if (found.length === 0) {
    const only = cell(empty);
    only.colSpan = columns;
    found = [row(only)];
  }
  element(id).replaceChildren(...found);
}

function pairs(id, entries) {
  element(id).replaceChildren(...entries.filter(([, value]) => value !== "" && value !== null && value !== undefined)
    .flatMap(([name, value]) => [made("dt", name), made("dd", value)]));
}

function lines(id, sentences) {
  element(id).replaceChildren(...sentences.map((each) => made("li", each)));
}

function problem(message) {
  element("problem").hidden = !message;
  element("problem").textContent = text(message);
}

function live(message, mark) {
  element("live").textContent = message;
  element("live").dataset.state = mark;
}

// --- the API --------------------------------------------------------------------------------------------------------

class Refusal extends Error {
  constructor(status, code, message) { super(message); this.status = status; this.code = code; }
}

async function ask(path, { method = "GET", body } = {}) {
  const headers = { Authorization: `Bearer ${state.token}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(path, { method, headers, body, cache: "no-store" });
  let found = null;
  try { found = await response.json(); } catch { /* what answers is not a coordinator, or it broke off: below */ }
  if (response.ok && found !== null) return found;
  const error = (found && found.error) || {};
  throw new Refusal(response.status, error.code, [error.message, error.hint].filter(Boolean).join(": ") || `HTTP ${response.status}`);
}

function failed(error) {
  if (error instanceof Refusal && (error.status === 401 || error.code === "wrong-role")) {
    forget(error.message);
    return;
  }
  live("not live", "bad");
  problem(error instanceof Refusal ? error.message
    : "This coordinator does not answer. What is shown is the last that it said; another coordinator serves the same page.");
}

// --- what is shown --------------------------------------------------------------------------------------------------

function showSummary(status) {
  const { epochs, participants, policy } = status;
  document.title = `Cleancut: ${text(status.cluster)}`;
  element("cluster").textContent = text(status.cluster);
  const every = policy.kind === "periodic" ? `every ${span(policy.interval_ms)}` : policy.kind;
  pairs("summary", [
    ["leader", status.leader ? `${status.leader}, term ${status.term}` : "none"],
    ["epochs", `${epochs.committed} committed, ${epochs.aborted} aborted, ${epochs.open.length} open; ${every}, deadline ${span(policy.deadline_ms)}`],
    ["participants", `${participants.up} of ${participants.count} up, ${participants.members} in topology ${status.topology}`],
    ["incarnation", status.incarnation],
    ["version", status.version],
  ]);
  const wrong = [];
  if (!status.leader) wrong.push("No coordinator leads: an election is going on, or there is no quorum. What is shown may be old.");
  if (status.struggling) wrong.push(`${epochs.failures_in_a_row} epochs in a row were aborted.`);
  problem(wrong.join(" "));
  rows("coordinators", status.coordinators.map((each) => {
    const up = each.up === null ? "" : each.up ? "up" : "down";
    return row(cell(each.id), cell(each.leader ? "leader" : "follower"), cell(up || "not known here", { mark: up }),
      cell(each.address), cell(each.applied, { number: true }));
  }), 5, "none");
}

function showEpochs(found) {
  rows("epochs", found.epochs.map((each) => {
    const link = made("a", each.epoch, { href: `#epoch/${each.epoch}` });
    const members = each.reported_count === each.members_count ? each.members_count : `${each.reported_count}/${each.members_count}`;
    const shown = row(cell(link, { number: true }), cell(each.state, { mark: each.state }), cell(moment(each.started_at_ms)),
      cell(span(each.duration_ms), { number: true }), cell(members, { number: true }), cell(size(each.state_bytes), { number: true }),
      cell(size(each.new_bytes), { number: true }), cell(each.in_flight, { number: true }), cell(listed(each.names || [])),
      cell(each.abort ? `${each.reason}; aborted: ${abortLine(each.abort)}` : each.reason, { words: true }));
    shown.setAttribute("aria-current", String(each.epoch === state.detail));
    return shown;
  }), 10, "No epochs yet.");
  element("older").hidden = !found.more;
}

function showParticipants(found) {
  rows("participants", found.participants.map((each) => row(
    cell(each.id), cell(each.state, { mark: each.state }), cell(each.session, { number: true }),
    cell(each.heartbeat_age_ms === null ? "" : `${span(each.heartbeat_age_ms)} ago`, { number: true }),
    cell(listed(each.agents), { words: true }), cell(each.address), cell(each.cause, { words: true }))), 7, "No participants yet.");
}

async function showDetail(run) {
  const number = state.detail;
  element("detail").hidden = number === null;
  if (number === null) return;
  let record, why;
  try {
    [record, why] = await Promise.all([ask(`/v1/epochs/${number}`), ask(`/v1/epochs/${number}/why`)]);
  } catch (error) {
    if (!(error instanceof Refusal) || error.status !== 404) throw error;
    element("detail-title").textContent = `Epoch ${number}`;
    lines("why", [error.message]);
    for (const id of ["facts", "members", "phases", "findings"]) element(id).replaceChildren();
    element("checking").hidden = true;
    return;
  }
  if (run !== state.run || number !== state.detail) return;
  element("detail-title").textContent = `Epoch ${number}: ${text(record.state)}`;
  lines("why", why.sentences);
  pairs("facts", [
    ["savepoint", listed(record.names || [])],
    ["started", moment(record.started_at_ms)], ["ended", moment(record.ended_at_ms)], ["terms", record.terms.join(", ")],
    ["incarnation", record.incarnation], ["topology", record.topology], ["state", size(record.state_bytes)],
    ["newly written", size(record.new_bytes)], ["in-flight", `${record.in_flight} messages`], ["manifest", record.manifest],
    ["previous manifest", record.previous],
  ]);
  element("checking").hidden = record.state !== "committed";
  rows("members", Object.entries(record.members).map(([name, each]) => row(cell(name), cell(each.phase || "not known"),
    cell(span(each.reported_ms), { number: true }), cell(size(each.state_bytes), { number: true }),
    cell(size(each.new_bytes), { number: true }), cell(each.in_flight, { number: true }))), 6,
  record.trimmed ? "No longer kept." : "None.");
  const longest = Math.max(1e-9, ...why.phases.map((each) => each.ms));
  rows("phases", why.phases.slice(0, 200).map((each) => {
    const share = made("progress", "", { max: longest, value: each.ms });
    share.setAttribute("aria-hidden", "true");
    return row(cell(each.participant || "(leader)"), cell(each.phase), cell(each.channel), cell(span(each.ms), { number: true }), cell(share));
  }), 5, "Nothing was reported.");
}

async function verify() {
  const number = state.detail, button = element("verify"), verdict = element("verdict");
  button.disabled = true;
  verdict.textContent = "reading it…";
  verdict.dataset.state = "busy";
  lines("findings", []);
  try {
    const report = await ask(`/v1/epochs/${number}/verify`, { method: "POST", body: JSON.stringify({ deep: true }) });
    if (number !== state.detail) return;
    // Only a plain "ok" is one.
    const sound = report.ok === true && report.findings.length === 0;
    verdict.textContent = sound ? "sound: signature, digests, consistency of the cut, every byte" : "NOT SOUND: do not restore from it";
    verdict.dataset.state = sound ? "good" : "bad";
    lines("findings", [...report.findings.map((each) => `${each.kind} ${each.channel || each.participant || each.key}: ${each.detail}`), ...(report.notes || [])]);
  } catch (error) {
    verdict.textContent = text(error.message);
    verdict.dataset.state = "bad";
  } finally {
    button.disabled = false;
  }
}

// --- keeping up -----------------------------------------------------------------------------------------------------

async function refresh() {
  const run = ++state.run;
  clearTimeout(state.due);
  state.due = null;
  try {
    const [status, epochs, participants] = await Promise.all(
      [ask("/v1/status"), ask(`/v1/epochs?limit=${state.shown}`), ask("/v1/participants")]);
    if (run !== state.run || !state.token) return;
    element("access").hidden = true;
    element("main").hidden = element("forget").hidden = false;
    showSummary(status);
    showEpochs(epochs);
    showParticipants(participants);
    await showDetail(run);
    live(state.streaming ? "live" : `every ${POLL_MS / 1000} s`, state.streaming ? "good" : "busy");
    follow();
  } catch (error) {
    if (run === state.run) failed(error);
  }
  if (run === state.run && state.token) soon(POLL_MS);
}

function soon(ms) {
  clearTimeout(state.due);
  state.due = setTimeout(refresh, ms);
}

// EventSource cannot send the Authorization header, so the stream is read by hand: each event means "look again".
async function follow() {
  if (state.streaming) return;
  state.streaming = true;
  const token = state.token;
  try {
    const response = await fetch("/v1/events", { headers: { Authorization: `Bearer ${token}` }, cache: "no-store" });
    if (response.ok && response.body) {
      live("live", "good");
      const reader = response.body.getReader();
      const decoder = new TextDecoder();
      for (;;) {
        const { done, value } = await reader.read();
        if (token !== state.token) { await reader.cancel(); break; }
        if (done) break;
        if (decoder.decode(value, { stream: true }).includes("data:")) soon(SETTLE_MS);
      }
    }
  } catch { /* the next refresh says what is wrong, or opens another stream */ }
  state.streaming = false;
  if (state.token) soon(SETTLE_MS * 5);
}

function forget(message) {
  sessionStorage.removeItem(TOKEN);
  state.token = "";
  state.run += 1;
  clearTimeout(state.due);
  element("main").hidden = element("forget").hidden = true;
  element("access").hidden = false;
  element("cluster").textContent = "";
  live("", "");
  problem(message || "");
  element("token").focus();
}

function route() {
  const found = /^#epoch\/(\d{1,15})$/.exec(location.hash);
  const number = found ? Number(found[1]) : null;
  if (number !== state.detail) {
    state.detail = number;
    element("verdict").textContent = "";
    lines("findings", []);
    if (number !== null) element("detail").scrollIntoView({ block: "nearest" });
  }
  if (state.token) refresh();
}

element("access").addEventListener("submit", (event) => {
  event.preventDefault();
  state.token = element("token").value.trim();
  element("token").value = "";
  // A header takes nothing else; what is not a token is refused here instead of by the browser in its own words.
  if (!/^[\x21-\x7e]+$/.test(state.token)) { forget("That is not a token."); return; }
  sessionStorage.setItem(TOKEN, state.token);
  refresh();
});
element("forget").addEventListener("click", () => forget());
element("verify").addEventListener("click", verify);
element("older").addEventListener("click", () => { state.shown = Math.min(1000, state.shown * 4); refresh(); });
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => { if (!document.hidden && state.token) refresh(); });
if (state.token) route(); else { element("access").hidden = false; route(); }
