"""Conditions of a TrainingRun and every reason that they may give. Part of the API: names never change."""

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
DISTRIBUTOR_SILENT = Reason("DistributorSilent", _U, "the distributor does not answer", "see DistributorAvailable")

TRAINING_RUN = Vocabulary(
    "TrainingRun",
    (
        ConditionType(
            "Deleting",
            "the object is being deleted",
            (
                Reason("NotRequested", _F, "nobody deleted it"),
                Reason("DeletingObjects", _T, "deletionPolicy Delete: the distributor deletes the run's objects"),
                Reason(
                    "DeletionBlocked",
                    _T,
                    "objects cannot be deleted; status.leftObjects names some",
                    "give the writer's key the right to delete, or wait for deletionTimeout, after which the object "
                    "goes without them",
                ),
                NOT_OBSERVED,
            ),
            wanted=_F,
        ),
        ConditionType(
            "DistributorAvailable",
            "the service runs and answers",
            (
                Reason("DistributorRunning", _T, "it is ready"),
                Reason("DistributorStarting", _F, "its pod starts", "wait; the message says what for"),
                Reason(
                    "PodUnschedulable",
                    _F,
                    "no node takes its pod",
                    "look at distributor.resources, distributor.pod and the volume's zone",
                ),
                Reason(
                    "VolumePending",
                    _F,
                    "its volume is not bound",
                    "name a storageClassName that exists, or free the quota",
                ),
                Reason(
                    "ConfigMissing",
                    _F,
                    "a Secret, ConfigMap or claim that its pod mounts, or an entry of it, is missing",
                    "create the one that the message names",
                ),
                Reason(
                    "ImageUnavailable",
                    _F,
                    "its image cannot be pulled",
                    "correct distributor.image or distributor.pod.imagePullSecrets",
                ),
                Reason(
                    "DistributorCrashing",
                    _F,
                    "its container ends again and again",
                    "read its log; the message has the last words",
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
            "the store answers the distributor, and lets it write",
            (
                Reason("StoreAnswers", _T, "the last request was answered"),
                Reason(
                    "StoreUnreachable",
                    _F,
                    "the endpoint does not answer, or answers with errors",
                    "look at the network and at weightStore.endpoint; what is served goes on",
                ),
                Reason(
                    "StoreDenied",
                    _F,
                    "the key pair is refused, or may not do what is needed",
                    "correct the Secret, or the key's rights; docs list them",
                ),
                Reason(
                    "BucketMissing",
                    _F,
                    "the bucket does not exist",
                    "create it, or make another TrainingRun with the right uri",
                ),
                CERTIFICATE_REFUSED,
                DISTRIBUTOR_SILENT,
                NOT_OBSERVED,
            ),
            wanted=_T,
        ),
        ConditionType(
            "ConditionalWritesSupported",
            "the store keeps two writers apart by itself",
            (
                Reason("ProbePassed", _T, "of racing creates exactly one won, and a stale condition was refused"),
                Reason(
                    "SingleWriter",
                    _F,
                    "the store ignores conditions: two writers would not notice each other",
                    "never run two writers of this run; Ready stays True",
                ),
                Reason("ProbeFailed", _U, "the probe could not be ended", "see StoreReachable"),
                DISTRIBUTOR_SILENT,
                NOT_OBSERVED,
            ),
        ),
        ConditionType(
            "Publishing",
            "versions come, or would if the trainer made any",
            (
                Reason("CheckpointsPublished", _T, "every checkpoint that is complete is published, or on its way"),
                Reason("TrainerPublishes", _T, "publisher SDK: the run is there, the trainer publishes"),
                Reason("Suspended", _F, "spec.suspend is true", asked=True),
                Reason(
                    "SourceMissing",
                    _F,
                    "checkpointSource cannot be listed",
                    "correct its path or uri, or the rights to it",
                ),
                Reason(
                    "SourceEmpty",
                    _F,
                    "no checkpoint is there yet",
                    "wait for the trainer; the path must be the folder above its checkpoints",
                ),
                Reason(
                    "CheckpointRefused",
                    _F,
                    "the newest checkpoint cannot be read",
                    "the message says why; the next one is tried all the same",
                ),
                Reason(
                    "NonFiniteRefused",
                    _F,
                    "the newest checkpoint has NaN or Inf, and publishPolicy.nonFinite is Refuse",
                    "look at the training",
                ),
                Reason(
                    "RunMissing",
                    _F,
                    "publisher SDK: the trainer has not created the run yet",
                    "start the trainer, with the same store and runName",
                ),
                Reason(
                    "Fenced",
                    _F,
                    "another writer has taken the run over",
                    "end the other writer, then restart the distributor",
                ),
                Reason(
                    "LineageChanged",
                    _F,
                    "the run's name is used by another training now",
                    "make a TrainingRun with a runName of its own",
                ),
                Reason("StateFull", _F, "the distributor's volume is full", "raise distributor.state.size"),
                Reason("PublishFailing", _F, "publishing fails for another reason", "the message says which"),
                DISTRIBUTOR_SILENT,
                NOT_OBSERVED,
            ),
            wanted=_T,
        ),
        ConditionType(
            "Suspended",
            "publishing stands still because spec.suspend asks for it",
            (
                Reason("SuspendRequested", _T, "it stands still"),
                Reason("Suspending", _F, "it was asked for, and the version on its way is still written"),
                Reason("NotRequested", _F, "spec.suspend is false"),
                NOT_OBSERVED,
            ),
        ),
        ConditionType(
            READY,
            "all that the spec asks for is being done",
            (
                Reason("AsSpecified", _T, "it is"),
                Reason("Suspended", _T, "it is, and spec.suspend asks for a stand-still"),
                NOT_OBSERVED,
            ),
        ),
    ),
)
