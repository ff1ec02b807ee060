"""Agents of a scripted run: servers that hold whole tokens and pass them over one-way channels."""

from __future__ import annotations

from dataclasses import dataclass

from participant import Agent, Context, handler, value

WAIT_SECONDS = 0.005


@dataclass(frozen=True)
class Send:
    """The script's command to a server: send `amount` tokens to `target`."""

    target: str
    amount: int


@dataclass(frozen=True)
class Token:
    """Tokens on their way."""

    amount: int


class Server(Agent, kind="server"):
    """Holds tokens."""

    tokens = value(int, default=0)
    begun = value(bool, default=False)

    def __init__(self, name: str, *, tokens: int) -> None:
        super().__init__(name)
        self._initial = tokens

    async def on_start(self, ctx: Context) -> None:
        """Take the topology file's tokens."""
        self.tokens += self._initial
        self.begun = True

    @handler
    def on_send(self, ctx: Context, send: Send) -> None:
        """Obey the script; tokens that are still on their way here are waited for."""
        if send.amount > self.tokens:
            ctx.after(WAIT_SECONDS, send)
            return
        self.tokens -= send.amount
        ctx.send(send.target, Token(send.amount))

    @handler
    def on_token(self, ctx: Context, token: Token) -> None:
        """Take what arrives."""
        self.tokens += token.amount
