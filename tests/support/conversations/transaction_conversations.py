"""All conversations about transactions, by name, in the order in which a broker is asked them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.support.conversations import transaction_admin_conversation as admin
from tests.support.conversations import transaction_conversation as lives
from tests.support.conversations import transaction_requests_conversation as requests
from tests.support.conversations import transaction_states_conversation as states
from tests.support.conversations.transaction_asks import TransactionTalk

Conversations = dict[str, Callable[[TransactionTalk], Awaitable[None]]]

TRANSACTION_CONVERSATIONS: Conversations = {
    f.__name__: f
    for f in (
        lives.before_the_first,  # finds a broker whose coordinators' topics do not exist
        lives.find,
        lives.features,
        lives.idempotent,
        lives.versions,
        lives.produce_versions,
        lives.readers,
        lives.mixed_versions,
        states.unknown_id,
        states.empty,
        states.ongoing,
        states.going_on_while_ongoing,
        states.going_on,
        states.timed_out,
        requests.partitions,
        requests.batches,
        requests.idempotent_batches,
        requests.offsets,
        requests.members,
        requests.markers,
        requests.markers_in_transactions,
        requests.deleted_topic,
        admin.described,
        admin.producers,
    )
}

HELD_CONVERSATIONS: Conversations = {
    f.__name__: f for f in (states.commit_1, states.abort_1, states.commit_2, states.abort_2, admin.lists)
}
"""Those that need a broker which can hold markers back."""
