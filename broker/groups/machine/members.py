"""The member set of a classic group: members, static names, votes for a protocol.

A static name maps to one member. The leader, if any, is a member. `awaiting_join` and the protocol counts cover the
current members.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from broker.groups.machine.events import NO_MEMBER, JoinedMember, MemberMetadata, Protocol

MEMBER_OVERHEAD_BYTES = 2_000  # bytes of a member besides its metadata (measured: 0.7 to 1.9 KB, CPython 3.11)


@dataclass(slots=True)
class Member:
    """One member. A token is present while the member waits for a response."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    join_token: object | None = None
    sync_token: object | None = None
    is_new: bool = False  # the member has not received a JoinGroup response, so its silence does not count yet
    subscriptions: dict[str, bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.set_protocols(self.protocols)

    def set_protocols(self, protocols: Iterable[Protocol]) -> None:
        self.subscriptions = {}
        for name, metadata in protocols:
            self.subscriptions.setdefault(name, metadata)
        self.protocols = tuple(Protocol(name, metadata) for name, metadata in self.subscriptions.items())

    @property
    def excuses_silence(self) -> bool:
        """A parked request counts as a heartbeat, once the member knows its id."""
        return not self.is_new and (self.join_token is not None or self.sync_token is not None)

    @property
    def size_bytes(self) -> int:
        return MEMBER_OVERHEAD_BYTES + len(self.assignment) + sum(len(metadata) for _, metadata in self.protocols)

    def stored(self, protocol_name: str | None, assignment: bytes) -> MemberMetadata:
        subscription = b"" if protocol_name is None else self.subscriptions[protocol_name]
        return MemberMetadata(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            subscription,
            assignment,
        )


class Members:
    """Members of one group in order of arrival. A member's protocols, token and id change only through these
    methods."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}
        self._supporters: dict[str, int] = {}
        self.awaiting_join = 0
        self.leader: str | None = None
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(tuple(self._members.values()))

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> Member | None:
        return self._members.get(member_id)

    def static_id(self, instance_id: str) -> str | None:
        """Member id of a static name."""
        return self._static.get(instance_id)

    def is_leader(self, member_id: str) -> bool:
        return self.leader == member_id

    def add(self, member: Member) -> None:
        """Add a member, which becomes the leader if there is no leader."""
        assert member.member_id not in self._members
        if member.instance_id is not None:
            assert member.instance_id not in self._static
            self._static[member.instance_id] = member.member_id
        self._members[member.member_id] = member
        self._count(member, +1)
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member:
        """Remove a member and return it; the caller answers its tokens. If the member led, the oldest other member
        becomes the leader."""
        member = self._members.pop(member_id)
        self._count(member, -1)
        if member.instance_id is not None and self._static.get(member.instance_id) == member_id:
            del self._static[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._members), None)
        return member

    def rename(self, member: Member, new_id: str) -> None:
        old_id = member.member_id
        assert new_id not in self._members and member.instance_id is not None
        self._members = {new_id if key == old_id else key: value for key, value in self._members.items()}
        self._static[member.instance_id] = new_id
        member.member_id = new_id
        if self.leader == old_id:
            self.leader = new_id

    def update(self, member: Member, protocols: tuple[Protocol, ...], session_ms: int, rebalance_ms: int) -> None:
        self._count(member, -1)
        member.set_protocols(protocols)
        member.session_timeout_ms, member.rebalance_timeout_ms = session_ms, rebalance_ms
        self._count(member, +1)

    def park_join(self, member: Member, token: object) -> object | None:
        """The member waits for the end of the join phase. Returns its earlier token, if any."""
        previous, member.join_token = member.join_token, token
        self.awaiting_join += previous is None
        return previous

    def take_join(self, member: Member) -> object | None:
        token, member.join_token = member.join_token, None
        self.awaiting_join -= token is not None
        return token

    def assign(self, member: Member, assignment: bytes) -> None:
        self.size_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def _count(self, member: Member, sign: int) -> None:
        for name in member.subscriptions:
            count = self._supporters.get(name, 0) + sign
            if count:
                self._supporters[name] = count
            else:
                del self._supporters[name]
        self.awaiting_join += sign * (member.join_token is not None)
        self.size_bytes += sign * member.size_bytes

    def elect_joined_leader(self) -> bool:
        """Make a member that joined the leader. False if no member joined."""
        current = self._members.get(self.leader or NO_MEMBER)
        if current is not None and current.join_token is not None:
            return True
        for member in self._members.values():
            if member.join_token is not None:
                self.leader = member.member_id
                return True
        return False

    def common(self, names: Iterable[str]) -> bool:
        return any(self._supporters.get(name, 0) == len(self._members) for name in names)

    def elect_protocol(self) -> str:
        """Each member votes for the first of its protocols that all members support. The most votes win; in a tie the
        earlier vote wins.
        """
        votes: dict[str, int] = {}
        for member in self._members.values():
            choice = next(n for n in member.subscriptions if self._supporters[n] == len(self._members))
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members."""
        return max(0, max((member.rebalance_timeout_ms for member in self._members.values()), default=0))

    def listed(self, protocol_name: str) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(m.member_id, m.instance_id, m.subscriptions[protocol_name]) for m in self._members.values()
        )
