"""What the core needs from outside, as protocols, and the flat records that cross them.

A `RecordSink` takes records and never makes the caller wait; a `RecordStore` answers questions
about records that were kept. `core.audit` builds the records, `storage` implements both sides.
"""

from core.ports.answers import (
    Cursor,
    DecisionQuery,
    NodeShare,
    Page,
    ReplicaRecord,
    RequestShare,
    RequestShares,
    StandingRecord,
    StoreCounts,
    StoredDecision,
    StoredNode,
    StoreStatus,
    StoreUpkeep,
    StoreWork,
    TelemetryPoint,
    TimeBucket,
    Timing,
    Timings,
)
from core.ports.documents import DocumentRecord, DocumentStore
from core.ports.identity import (
    IDENTITY_TOPIC,
    AuditDraft,
    AuditMark,
    AuditRecord,
    ChainFault,
    IdentityChange,
    IdentityStore,
    KeyRecord,
    TokenRecord,
    UserRecord,
)
from core.ports.records import (
    DecisionRecord,
    EventRecord,
    KeptPrompt,
    NodeWord,
    OutcomeRecord,
    RevisionRecord,
    ScheduledRecord,
)
from core.ports.sink import (
    NODE_STATES,
    RecordSink,
    SinkCounters,
)
from core.ports.store import (
    ControlStore,
    RecordStore,
)

__all__ = [
    "IDENTITY_TOPIC",
    "NODE_STATES",
    "AuditDraft",
    "AuditMark",
    "AuditRecord",
    "ChainFault",
    "ControlStore",
    "Cursor",
    "DecisionQuery",
    "DecisionRecord",
    "DocumentRecord",
    "DocumentStore",
    "EventRecord",
    "IdentityChange",
    "IdentityStore",
    "KeptPrompt",
    "KeyRecord",
    "NodeShare",
    "NodeWord",
    "OutcomeRecord",
    "Page",
    "RecordSink",
    "RecordStore",
    "ReplicaRecord",
    "RequestShare",
    "RequestShares",
    "RevisionRecord",
    "ScheduledRecord",
    "SinkCounters",
    "StandingRecord",
    "StoreCounts",
    "StoreStatus",
    "StoreUpkeep",
    "StoreWork",
    "StoredDecision",
    "StoredNode",
    "TelemetryPoint",
    "TimeBucket",
    "Timing",
    "Timings",
    "TokenRecord",
    "UserRecord",
]
