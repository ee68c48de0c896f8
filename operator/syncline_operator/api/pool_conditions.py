"""Conditions of a RolloutPool and every reason that they may give. Part of the API: names never change."""

from __future__ import annotations

from syncline_operator.api.conditions import (
    CERTIFICATE_REFUSED,
    CHILD_REFUSED,
    FIELD_MANAGER_CONFLICT,
    NAMESPACE_TERMINATING,
    NOT_OBSERVED,
    READY,
    ConditionType,
    Reason,
    Truth,
    Vocabulary,
)

_T, _F, _U = Truth.TRUE, Truth.FALSE, Truth.UNKNOWN
AGENTS_SILENT = Reason("AgentsSilent", _U, "no agent answers", "see AgentReady")
NONE_READY = Reason("NoneReady", _U, "no replica is ready", "see Available")
NO_REPLICAS = Reason("NoReplicas", _T, "the pool has no replicas, so none is otherwise")

ROLLOUT_POOL = Vocabulary(
    "RolloutPool",
    (
        ConditionType(
            "AgentReady",
            "every engine has an agent that answers, and every agent its engines' arms",
            (
                Reason("AgentsRunning", _T, "they do"),
                NO_REPLICAS,
                Reason("AgentsStarting", _F, "agents start", "wait; the message says what for"),
                Reason(
                    "PodSecurityRefused",
                    _F,
                    "the namespace's Pod Security level refuses the agents' hostPath",
                    "label the namespace privileged, or set agent.mode Sidecar",
                ),
                Reason(
                    "NodeWithoutAgent",
                    _F,
                    "a node with engines has no agent",
                    "look at agent.pod: it must let agents onto every node of the pool",
                ),
                Reason(
                    "ConfigMissing",
                    _F,
                    "a Secret or ConfigMap that agents mount, or an entry of it, is missing",
                    "create the one that the message names",
                ),
                Reason(
                    "ImageUnavailable",
                    _F,
                    "the agents' image cannot be pulled",
                    "correct agent.image or agent.pod.imagePullSecrets",
                ),
                Reason(
                    "AgentCrashing", _F, "agents end again and again", "read their log; the message has the last words"
                ),
                Reason("NodeDirectoryFull", _F, "a node directory is full", "give it a larger disk (agent.cache)"),
                Reason(
                    "ArmMissing",
                    _F,
                    "engines run without the arm",
                    "with workloadRef, pass the pod template through syncline inject -f; else see the engine's log",
                ),
                Reason(
                    "ArmRefused",
                    _F,
                    "an agent turned an engine's arm away",
                    "the message says why: another protocol, or a second engine at one socket",
                ),
                CHILD_REFUSED,
                FIELD_MANAGER_CONFLICT,
                NAMESPACE_TERMINATING,
                NOT_OBSERVED,
            ),
            wanted=_T,
        ),
        ConditionType(
            "StoreReachable",
            "the store answers every agent",
            (
                Reason("StoreAnswers", _T, "the last requests were answered"),
                NO_REPLICAS,
                Reason(
                    "MirrorUnreachable",
                    _T,
                    "a mirror does not answer, and weightStore does",
                    "look at the mirror; versions come from farther away meanwhile",
                ),
                Reason(
                    "StoreUnreachable",
                    _F,
                    "the endpoint does not answer, or answers with errors",
                    "look at the network and at weightStore.endpoint; the pool goes on serving what it has",
                ),
                Reason(
                    "StoreDenied",
                    _F,
                    "the key pair is refused, or may not read the run",
                    "correct the Secret, or the key's rights; docs list them",
                ),
                Reason("BucketMissing", _F, "the bucket does not exist", "correct the uri: make another RolloutPool"),
                CERTIFICATE_REFUSED,
                AGENTS_SILENT,
                NOT_OBSERVED,
            ),
            wanted=_T,
        ),
        ConditionType(
            "HeartbeatsWritten",
            "the store hears what each node serves, and keeps what it needs",
            (
                Reason("HeartbeatsOn", _T, "it does"),
                NO_REPLICAS,
                Reason(
                    "HeartbeatsDenied",
                    _F,
                    "the key pair only reads: nothing keeps the versions that the pool needs",
                    "let it write consumers/ and leases/ of the view; Ready stays True",
                ),
                Reason("HeartbeatsLate", _F, "they cannot be written at the moment", "see StoreReachable"),
                Reason(
                    "HeartbeatsShared",
                    _F,
                    "two agents write under one name",
                    "give each cluster a name of its own in its operator's settings",
                ),
                AGENTS_SILENT,
                NOT_OBSERVED,
            ),
        ),
        ConditionType(
            "Proven",
            "every ready replica holds the bits that the trainer published, by the digest of its live "
            "memory, and none is known to hold others",
            (
                Reason("AllProven", _T, "they do"),
                Reason(
                    "SweepPending",
                    _T,
                    "ready ones are; others are still being read whole, since they loaded, woke or went back",
                ),
                NO_REPLICAS,
                NONE_READY,
                Reason(
                    "DigestMismatch",
                    _F,
                    "a replica holds other bits; it is out of service and being healed",
                    "if it comes again, look at the node's memory",
                ),
                Reason(
                    "Unprovable",
                    _F,
                    "an engine's weights cannot be proven from outside",
                    "take applyPath InPlace, or accept it by versionPolicy.unprovable Serve",
                ),
                Reason(
                    "ServedUnproven",
                    _F,
                    "an engine's weights cannot be proven from outside, and versionPolicy.unprovable is Serve",
                    asked=True,
                ),
                AGENTS_SILENT,
                NOT_OBSERVED,
            ),
            wanted=_T,
        ),
        ConditionType(
            "WeightsCurrent",
            "every ready replica serves its target, or is on its way and behind by no more than the policy's "
            "bounds, where it has any",
            (
                Reason("Current", _T, "it does"),
                Reason("AtPinned", _T, "it serves the version that is pinned"),
                NO_REPLICAS,
                NONE_READY,
                Reason("Suspended", _T, "spec.suspend is true: what is served stays, however old"),
                Reason(
                    "CatchingUp",
                    _F,
                    "replicas are on their way, and behind by more than the policy's bounds",
                    "wait; lagSeconds says how far",
                ),
                Reason(
                    "NotFollowing",
                    _F,
                    "replicas are behind, and their agents cannot follow",
                    "the message has the agents' words",
                ),
                Reason(
                    "RunMissing",
                    _F,
                    "the run is not in the store",
                    "start its TrainingRun, or correct runName, view and uri",
                ),
                Reason(
                    "VersionMissing",
                    _F,
                    "the pinned version is not in the store",
                    "pin one from oldestRetainedVersion of its TrainingRun on",
                ),
                Reason("VersionVetoed", _F, "the pinned version was marked bad", "pin another one"),
                Reason(
                    "LineageChanged",
                    _F,
                    "the run's name is used by another training now",
                    "restart the pods to serve it, or correct runName",
                ),
                AGENTS_SILENT,
                NOT_OBSERVED,
            ),
            wanted=_T,
        ),
        ConditionType(
            "Available",
            "no more replicas are away than updateStrategy.rollingUpdate.maxUnavailable",
            (
                Reason("EnoughReplicas", _T, "enough are ready, and were for minReadySeconds"),
                NO_REPLICAS,
                Reason(
                    "EngineStarting",
                    _F,
                    "engines start, or wait for their first version",
                    "wait; the message says what for",
                ),
                Reason(
                    "TemplateInvalid",
                    _F,
                    "no pod can be made of spec.template",
                    "the message has the API server's words and the field",
                ),
                Reason("WorkloadMissing", _F, "workloadRef names nothing", "create it, or correct the name"),
                Reason(
                    "WorkloadUnreadable",
                    _F,
                    "the operator may not read workloadRef, or it has no scale",
                    "give the operator the right to (docs name the Role), or name another kind",
                ),
                Reason(
                    "PodUnschedulable",
                    _F,
                    "no node takes the pods",
                    "look at the template's resources and nodeSelector, and at free GPUs",
                ),
                Reason(
                    "ConfigMissing",
                    _F,
                    "a Secret, ConfigMap or claim that the template names, or an entry of it, is missing",
                    "create the one that the message names",
                ),
                Reason("ImageUnavailable", _F, "the engine's image cannot be pulled", "correct it in the template"),
                Reason(
                    "EngineCrashing",
                    _F,
                    "engines end again and again",
                    "read their log; the message has the last words",
                ),
                Reason(
                    "EngineOutOfService",
                    _F,
                    "engines answer, and may not serve: their arm says why",
                    "the message has the arm's words",
                ),
                CHILD_REFUSED,
                FIELD_MANAGER_CONFLICT,
                NAMESPACE_TERMINATING,
                NOT_OBSERVED,
            ),
            wanted=_T,
        ),
        ConditionType(
            "InPlace",
            "versions are changed in the engines' memory, not reloaded",
            (
                Reason("ChangedInPlace", _T, "they are"),
                NO_REPLICAS,
                NONE_READY,
                Reason("NoCommitYet", _U, "no version came since the engines started"),
                Reason("ReloadRequested", _F, "engine.applyPath is Reload"),
                Reason(
                    "LayoutRefused",
                    _F,
                    "an arm refuses its engine's layout, so its reload route is taken: slower, and sometimes "
                    "unprovable",
                    "docs/engines.md names what is changed in place; Ready stays True",
                ),
                AGENTS_SILENT,
                NOT_OBSERVED,
            ),
        ),
        ConditionType(
            "Progressing",
            "a change is on its way to all replicas",
            (
                Reason("TemplateRollout", _T, "pods are replaced by pods of the newest template"),
                Reason("PolicySpreading", _T, "not all agents follow the policy as it stands yet"),
                Reason("CanaryBaking", _T, "a few replicas serve a version before the others"),
                Reason("Scaling", _T, "replicas are added or taken away"),
                Reason("Complete", _F, "all replicas are as specified"),
                Reason(
                    "ProgressDeadlineExceeded",
                    _F,
                    "nothing moved for progressDeadlineSeconds",
                    "see Available and AgentReady",
                ),
                Reason(
                    "CanaryFailed",
                    _F,
                    "the canary is not proven and ready; the others stay where they are",
                    "mark the version bad, or heal the canary",
                ),
                NOT_OBSERVED,
            ),
        ),
        ConditionType(
            "Suspended",
            "the weights stand still because spec.suspend asks for it",
            (
                Reason("SuspendRequested", _T, "all agents stand still"),
                Reason("Suspending", _F, "it was asked for, and not all agents have heard"),
                Reason("NotRequested", _F, "spec.suspend is false"),
                NOT_OBSERVED,
            ),
        ),
        ConditionType(
            READY,
            "Available, Proven, WeightsCurrent, AgentReady and StoreReachable are True",
            (
                Reason("AsSpecified", _T, "they are"),
                Reason("Suspended", _T, "they are, and spec.suspend keeps the weights where they are"),
                Reason("AtPinned", _T, "they are, and the version is pinned"),
                NOT_OBSERVED,
            ),
        ),
    ),
)
