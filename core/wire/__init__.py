"""Schemas of the admin API: the one thing the console and other clients import from the core.

Requests refuse unknown fields; answers ignore them when read, so that an older client keeps
working. Times are aware UTC, durations seconds unless the name ends otherwise, shares 0..1.
Routes (all under ``/admin/v1``, JSON):

=======  ==============================  =================================================
method   path                            body -> answer
=======  ==============================  =================================================
GET      /state                          -> FleetState
GET      /nodes                          -> NodeList
POST     /nodes                          NodeRegistration -> NodeView (201; 409 duplicate)
GET      /nodes/{id}                     -> NodeView
PATCH    /nodes/{id}                     NodeChange -> NodeView
DELETE   /nodes/{id}                     query: reason, author -> Done
POST     /nodes/{id}/cordon, /uncordon   ActionReason -> NodeView
POST     /nodes/{id}/drain, /undrain     ActionReason -> NodeView (progress in `drain`)
POST     /nodes/{id}/breaker             BreakerAction -> NodeView
GET      /breaker                        the global breaker -> BreakerView
POST     /breaker                        BreakerAction -> BreakerView
GET      /decisions                      query: see DecisionQuery -> DecisionPage
GET      /decisions/export               query: see ExportQuery -> a CSV or Parquet file
GET      /decisions/{id}/prompt          -> PromptView (admin; entered in the audit)
GET      /decisions/{id}                 id, unique prefix of one, or request id -> DecisionDetail
POST     /decisions/{id}/what-if         WhatIfAsk -> WhatIfView
GET      /history                        query: kind, node, since, until, limit -> EventHistory
GET      /hotspots                       query: limit -> HotspotView
GET      /lab/sources                    -> LabSources
GET      /lab/jobs                       -> LabJobList
POST     /lab/jobs                       LabAsk -> LabJob (201)
GET      /lab/jobs/{id}                  -> LabJob, with its result
DELETE   /lab/jobs/{id}                  cancel, or forget an ended one -> LabJob
GET      /series                         query: window=live|minutes, from, to -> Series
GET      /shares                         query: since, until, limit, nodes -> Shares
GET      /timings                        query: since, until, limit -> TimingsView
GET      /nodes/{id}/readings            query: since, until, points -> Readings
GET      /nodes/{id}/signal              -> SignalView
GET      /nodes/{id}/cost                -> CostView
GET      /tunables                       -> TunablesView
PUT      /tunables                       TunablesChange -> TunablesView (409 stale, 422 field)
GET      /policies                       -> PolicyList
GET      /revisions                      query: limit -> RevisionList
POST     /revisions                      RevisionAsk, If-Match -> FullRevision (409 StaleBody)
POST     /revisions/rollback             RollbackAsk -> FullRevision
GET      /revisions/{n}                  -> FullRevision
GET      /revisions/{n}/diff             query: to -> RevisionDiff
GET      /scheduled                      query: all -> ScheduledList
POST     /scheduled                      ScheduleAsk -> ScheduledView
POST     /scheduled/{id}/cancel          Why -> ScheduledView
POST     /preview                        PreviewAsk -> PreviewView
GET      /shadow, /canary, /guard        -> ShadowView, CanaryView, GuardView
POST     /shadow/start, /canary/start    TrialAsk -> ShadowView, CanaryAsk -> CanaryView
POST     /shadow/stop, /canary/stop      Why -> ShadowView, CanaryView
GET      /jobs                           -> JobList
GET      /monitors                       -> MonitorList
GET      /monitors/series                query: name (repeated), points -> MonitorSeries
GET      /forecast                       -> ForecastView
GET      /alerts                         -> AlertList
POST     /alerts/{name}/acknowledge      AlertNote -> AlertView (404, 409)
GET      /storage                        -> StorageView
GET      /replicas                       -> ReplicaList
GET      /events                         query: kind, after; Last-Event-ID -> text/event-stream
GET      /queue                          who waits for a node -> QueueView
GET      /migrations                     query: limit -> MigrationList
POST     /migrations                     MigrationAsk -> MigrationView (202; 404, 409)
POST     /migrations/{id}/cancel         MigrationCancel -> MigrationView
GET      /cache/hot                      query: limit, node -> HotPrefixes
GET      /whoami                         -> WhoAmI
GET      /views                          -> SavedViewList
POST     /views                          SavedViewAsk -> SavedView (201; 409 taken or too many)
DELETE   /views/{id}                     query: reason -> SavedView
POST     /login, /logout                 SignIn -> SignedIn (201; 401, 429), -> Done
POST     /login/oidc                     SignInElsewhere -> SignedIn (201; 401, 403, 404, 429)
GET      /users                          -> UserList (admin, as all that follows)
POST     /users                          UserAsk -> UserView (201; 409, 422 field)
PATCH    /users/{name}                   UserChange -> UserView
GET      /tokens                         -> TokenList
POST     /tokens                         TokenAsk -> NewToken (201)
DELETE   /tokens/{id}                    query: reason -> TokenView
GET      /keys                           -> KeyList
POST     /keys                           KeyAsk -> NewKey (201)
DELETE   /keys/{id}                      query: reason -> KeyView
GET      /audit                          query: before, limit, actor, action, target -> AuditPage
GET      /audit/verify                   -> AuditCheck
GET      /cache/tree                     query: root, budget -> CacheTree
GET      /cache/prefixes/{key}           -> PrefixView
GET      /cache/replication              query: points, since, until -> Replication
POST     /cache/lookup                   LookupAsk -> LookupView (422 field)
=======  ==============================  =================================================

Errors are ``{"error": {"message", "type", "param", "code"}}`` (`ErrorBody`); outside the
prefix, ``GET /health/live``, ``/health/ready``, ``/health`` (`HealthView`) and ``/metrics``.
"""

from __future__ import annotations

from core.wire.base import (
    API_PREFIX,
    Answer,
    Ask,
    Done,
    ErrorBody,
    ErrorDetail,
)
from core.wire.cache import (
    CacheTree,
    ChainView,
    HolderView,
    HotPrefixes,
    HotPrefixView,
    LookupAsk,
    LookupView,
    NodeMatchView,
    PrefixView,
    Replication,
    ReplicationPoint,
    TreeCellView,
)
from core.wire.control import (
    CanaryAsk,
    CanaryView,
    ComparedView,
    EffectView,
    ExampleView,
    ExpectedView,
    FullRevision,
    GuardView,
    MoveView,
    PreviewAsk,
    PreviewFigures,
    PreviewView,
    ReplayView,
    RevisionAsk,
    RevisionDiff,
    RevisionList,
    RollbackAsk,
    ScheduleAsk,
    ScheduledList,
    ScheduledView,
    ShadowView,
    SideView,
    StaleBody,
    StaleDetail,
    TrialAsk,
    Why,
)
from core.wire.decisions import (
    CandidateView,
    DecisionDetail,
    DecisionPage,
    DecisionQuery,
    DecisionRow,
    OutcomeView,
    PromptKeeping,
    PromptView,
    SelectionView,
)
from core.wire.evidence import (
    EventHistory,
    EventView,
    HotGroupView,
    HotspotView,
    WhatIfAsk,
    WhatIfCandidate,
    WhatIfView,
)
from core.wire.fleet import (
    BreakerView,
    CostView,
    DrainView,
    FiringAlert,
    FitView,
    FleetState,
    HealthView,
    NodeList,
    NodeLoad,
    NodeView,
    NoteView,
    PlaceView,
    Quantiles,
    ServiceView,
    SignalView,
    Totals,
)
from core.wire.identity import (
    AuditCheck,
    AuditEntry,
    AuditPage,
    KeyAsk,
    KeyList,
    KeyView,
    NewKey,
    NewToken,
    SignedIn,
    SignIn,
    SignInElsewhere,
    TokenAsk,
    TokenList,
    TokenView,
    UserAsk,
    UserChange,
    UserList,
    UserView,
    WhoAmI,
)
from core.wire.lab import (
    LabArm,
    LabAsk,
    LabFleet,
    LabJob,
    LabJobList,
    LabPoint,
    LabSource,
    LabSources,
)
from core.wire.migrations import (
    MigrationAsk,
    MigrationCancel,
    MigrationList,
    MigrationTotals,
    MigrationView,
)
from core.wire.nodes import (
    ActionReason,
    BreakerAction,
    EventsAsk,
    NodeChange,
    NodeRegistration,
    PlaceAsk,
)
from core.wire.past import (
    Calibration,
    CalibrationBin,
    MarginBin,
    Readings,
    ReadingView,
    Shares,
    ShareView,
    TimingsView,
)
from core.wire.queue import (
    QueueGroup,
    QueueView,
)
from core.wire.records import (
    DatabaseView,
    ExportQuery,
    ReplicaList,
    ReplicaView,
    SpoolView,
    StorageView,
    UpkeepView,
    WriterView,
)
from core.wire.series import (
    Series,
    SeriesPoint,
)
from core.wire.tuning import (
    PolicyList,
    PolicyView,
    RevisionView,
    TunablesChange,
    TunablesView,
    TunableView,
)
from core.wire.views import VIEWS_MAX, SavedView, SavedViewAsk, SavedViewList
from core.wire.watch import (
    AcknowledgementView,
    AlertList,
    AlertNote,
    AlertView,
    ForecastSeries,
    ForecastView,
    HitView,
    JobList,
    JobView,
    MonitorList,
    MonitorPoint,
    MonitorSeries,
    MonitorView,
    WebhookView,
)

__all__ = [
    "API_PREFIX",
    "VIEWS_MAX",
    "AcknowledgementView",
    "ActionReason",
    "AlertList",
    "AlertNote",
    "AlertView",
    "Answer",
    "Ask",
    "AuditCheck",
    "AuditEntry",
    "AuditPage",
    "BreakerAction",
    "BreakerView",
    "CacheTree",
    "Calibration",
    "CalibrationBin",
    "CanaryAsk",
    "CanaryView",
    "CandidateView",
    "ChainView",
    "ComparedView",
    "CostView",
    "DatabaseView",
    "DecisionDetail",
    "DecisionPage",
    "DecisionQuery",
    "DecisionRow",
    "Done",
    "DrainView",
    "EffectView",
    "ErrorBody",
    "ErrorDetail",
    "EventHistory",
    "EventView",
    "EventsAsk",
    "ExampleView",
    "ExpectedView",
    "ExportQuery",
    "FiringAlert",
    "FitView",
    "FleetState",
    "ForecastSeries",
    "ForecastView",
    "FullRevision",
    "GuardView",
    "HealthView",
    "HitView",
    "HolderView",
    "HotGroupView",
    "HotPrefixView",
    "HotPrefixes",
    "HotspotView",
    "JobList",
    "JobView",
    "KeyAsk",
    "KeyList",
    "KeyView",
    "LabArm",
    "LabAsk",
    "LabFleet",
    "LabJob",
    "LabJobList",
    "LabPoint",
    "LabSource",
    "LabSources",
    "LookupAsk",
    "LookupView",
    "MarginBin",
    "MigrationAsk",
    "MigrationCancel",
    "MigrationList",
    "MigrationTotals",
    "MigrationView",
    "MonitorList",
    "MonitorPoint",
    "MonitorSeries",
    "MonitorView",
    "MoveView",
    "NewKey",
    "NewToken",
    "NodeChange",
    "NodeList",
    "NodeLoad",
    "NodeMatchView",
    "NodeRegistration",
    "NodeView",
    "NoteView",
    "OutcomeView",
    "PlaceAsk",
    "PlaceView",
    "PolicyList",
    "PolicyView",
    "PrefixView",
    "PreviewAsk",
    "PreviewFigures",
    "PreviewView",
    "PromptKeeping",
    "PromptView",
    "Quantiles",
    "QueueGroup",
    "QueueView",
    "ReadingView",
    "Readings",
    "ReplayView",
    "ReplicaList",
    "ReplicaView",
    "Replication",
    "ReplicationPoint",
    "RevisionAsk",
    "RevisionDiff",
    "RevisionList",
    "RevisionView",
    "RollbackAsk",
    "SavedView",
    "SavedViewAsk",
    "SavedViewList",
    "ScheduleAsk",
    "ScheduledList",
    "ScheduledView",
    "SelectionView",
    "Series",
    "SeriesPoint",
    "ServiceView",
    "ShadowView",
    "ShareView",
    "Shares",
    "SideView",
    "SignIn",
    "SignInElsewhere",
    "SignalView",
    "SignedIn",
    "SpoolView",
    "StaleBody",
    "StaleDetail",
    "StorageView",
    "TimingsView",
    "TokenAsk",
    "TokenList",
    "TokenView",
    "Totals",
    "TreeCellView",
    "TrialAsk",
    "TunableView",
    "TunablesChange",
    "TunablesView",
    "UpkeepView",
    "UserAsk",
    "UserChange",
    "UserList",
    "UserView",
    "WebhookView",
    "WhatIfAsk",
    "WhatIfCandidate",
    "WhatIfView",
    "WhoAmI",
    "Why",
    "WriterView",
]
