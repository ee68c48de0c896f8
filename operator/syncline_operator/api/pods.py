"""What can be said of pods: those that the operator makes, and the template of a pool's engines."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from syncline_operator.api.schema import Part
from syncline_operator.api.values import ATOMIC, Entry, Large, ObjectName, Quantity, Rule, map_list

MetaKey = Annotated[str, Field(max_length=317)]
LabelValue = Annotated[str, Field(max_length=63)]
Image = Annotated[str, Field(min_length=1, max_length=512)]
OURS = "syncline-"
"""How the names of containers begin that the operator adds to a pod."""
OUR_DOMAIN = "syncline.dev/"


class LogLevel(StrEnum):
    """From which level on a process logs."""

    DEBUG = "Debug"
    INFO = "Info"
    WARNING = "Warning"
    ERROR = "Error"


class Effect(StrEnum):
    """What a taint does."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class TolerationOperator(StrEnum):
    """How a toleration matches."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class Resources(Part):
    """What a container asks for and may use."""

    requests: Annotated[dict[str, Quantity], Field(max_length=16)] = Field(
        default_factory=dict,
        description="What the container is sure to get, by resource (cpu, memory, …). Nothing is asked for by "
        "default: "
        "clusters that set their own lower bounds would refuse a fixed number.",
    )
    limits: Annotated[dict[str, Quantity], Field(max_length=16)] = Field(
        default_factory=dict, description="What the container may use at most, by resource. No limit by default."
    )


class Toleration(Part):
    """A taint that a pod may stand on."""

    key: MetaKey | None = Field(
        default=None, description="Key of the taint. Left out, with operator Exists, every taint is tolerated."
    )
    operator: TolerationOperator = Field(
        default=TolerationOperator.EQUAL,
        description="Exists takes any value of the key; Equal, the default as in a pod, the one named.",
    )
    value: LabelValue | None = Field(default=None, description="Value of the taint, with operator Equal.")
    effect: Effect | None = Field(default=None, description="Effect of the taint. Left out, every effect is tolerated.")
    toleration_seconds: Large | None = Field(
        default=None, description="For how many seconds a NoExecute taint is tolerated. Left out, for ever."
    )
    rules = (
        Rule(
            "self.operator == 'Equal' || !has(self.value)",
            "operator Exists takes no value",
            at=".value",
            reason="FieldValueForbidden",
        ),
        Rule(
            "self.operator == 'Exists' || has(self.key)",
            "operator Equal needs a key",
            at=".key",
            reason="FieldValueRequired",
        ),
        Rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "tolerationSeconds goes with effect NoExecute",
            at=".tolerationSeconds",
            reason="FieldValueForbidden",
        ),
    )


class PullSecret(Part):
    """A Secret that opens a registry."""

    name: ObjectName = Field(description="Name of the Secret, in the object's own namespace.")


class Affinity(Part):
    """Kubernetes' own struct, passed on as it is."""

    model_config = ConfigDict(frozen=True, extra="allow", alias_generator=to_camel)


class PodSettings(Part):
    """What a user may say of pods that the operator makes."""

    labels: Annotated[dict[str, LabelValue], Field(max_length=64)] = Field(
        default_factory=dict, description="Labels that the pods bear beside the operator's own."
    )
    annotations: Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=64)] = Field(
        default_factory=dict, description="Annotations that the pods bear."
    )
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=64)] = Field(
        default_factory=dict, description="Labels that a node must have to take the pods."
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32), ATOMIC] = Field(
        default=(), description="Taints that the pods may stand on. GPU nodes bear some in most clusters."
    )
    affinity: Affinity | None = Field(
        default=None, description="Affinity of the pods, as in a pod's spec; passed on as it is."
    )
    priority_class_name: ObjectName | None = Field(
        default=None, description="PriorityClass of the pods. Left out, it is the cluster's default."
    )
    image_pull_secrets: Annotated[tuple[PullSecret, ...], Field(max_length=16), map_list("name")] = Field(
        default=(), description="Secrets that open the registry of the image."
    )
    rules = (
        Rule(
            "!has(self.labels) || self.labels.all(key, !key.startsWith('syncline.dev/'))",
            "labels that begin with syncline.dev/ are the operator's own",
            at=".labels",
            reason="FieldValueForbidden",
        ),
    )


class TemplateMetadata(Part):
    """Of an engine's pods; whatever else is there is passed on."""

    model_config = ConfigDict(frozen=True, extra="allow", alias_generator=to_camel)
    labels: Annotated[dict[str, LabelValue], Field(max_length=64)] = Field(
        default_factory=dict,
        description="Labels of the pods. The operator adds its own, which begin with syncline.dev/.",
    )
    rules = (
        Rule(
            "!has(self.labels) || self.labels.all(key, !key.startsWith('syncline.dev/'))",
            "labels that begin with syncline.dev/ are the operator's own",
            at=".labels",
            reason="FieldValueForbidden",
        ),
    )


class TemplateContainer(Part):
    """Of an engine's pod; whatever else is there is passed on."""

    model_config = ConfigDict(frozen=True, extra="allow", alias_generator=to_camel)
    name: Annotated[Entry, Field(max_length=63)] = Field(description="Name of the container, a DNS label.")
    rules = (
        Rule(
            f"!self.name.startsWith('{OURS}')",
            f"names of containers that begin with {OURS} are taken by those that the operator adds",
            at=".name",
        ),
    )


class TemplateSpec(Part):
    """Spec of an engine's pod; whatever else is there is passed on."""

    model_config = ConfigDict(frozen=True, extra="allow", alias_generator=to_camel)
    containers: Annotated[tuple[TemplateContainer, ...], Field(min_length=1, max_length=32), map_list("name")] = Field(
        description="Containers of the pod, as in a pod's spec; the engine is the one that engine.container names, "
        "or else the first."
    )
    init_containers: Annotated[tuple[TemplateContainer, ...], Field(max_length=32), map_list("name")] = Field(
        default=(), description="Containers that run before, as in a pod's spec. The operator's own come first."
    )


class PodTemplate(Part):
    """A PodTemplateSpec. What is not described here is Kubernetes' own, kept as it is and checked by a dry run."""

    metadata: TemplateMetadata | None = Field(default=None, description="Labels and annotations of the pods.")
    spec: TemplateSpec = Field(
        description="Spec of the pods, as of any pod (kubectl explain pod.spec). The user's images and commands stay "
        "as they are; "
        "the arm, the gateway and volumes are added. Fields that no pod has are found by a dry run and "
        "told by TemplateInvalid."
    )

    @property
    def raw(self) -> dict[str, Any]:
        """As it was written."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)
