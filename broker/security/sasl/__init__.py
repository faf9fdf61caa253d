"""SASL logins: a client proves its identity before any of its requests is answered (KIP-12, KIP-43, KIP-84, KIP-255,
KIP-368).

Path of a frame from a client that is not logged in:

1. `login_dispatcher.LoginDispatcher` stands before the broker's dispatcher on a SASL listener. It owns the timers, the
   delays and the limits of logins (`limits`).
2. `login.ServerLogin` (pure) decides which requests may come next, and when the connection ends.
3. A mechanism (pure) judges tokens: `plain`, `scram_server`, `oauthbearer`. No mechanism says whether the user or the
   password was wrong. `jwt_verifier` judges the signature of a token in a worker, with the keys of `jwks`.

The client's side, for brokers' links and the command line, is `client_login`. `credentials` makes SCRAM credentials
from passwords.
"""
