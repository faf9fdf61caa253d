"""The deterministic simulation of a whole broker: `broker.app.run` in virtual time, with faults.

It holds no append, tiering or recovery code: it starts the wiring that `serve` uses with another disk (loses,
reorders and tears what was not synced), bucket, clock, randomness and network, lets seeded clients work against it
while a nemesis breaks things, and checks what the clients saw against docs/GUARANTEES.md. Always true: one seed is one
history, byte for byte (for one commit and one Python minor version). `python -m tests.sim --seed 7` replays one.

`world` is what brokers run on, `checks` what is checked, `transactions` who writes in them. `several` simulates several
brokers, `pair` two among late work. `scripted` plays scripts instead of seeds, `seeds` some seeds of each kind;
`planted` has bugs to be caught.
"""
