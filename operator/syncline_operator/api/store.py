"""Where weights lie, and by which key pair they are reached: the same structs in both kinds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from syncline_operator.api.schema import Part
from syncline_operator.api.values import Endpoint, Entry, ObjectName, Rule, StoreUri

Region = Annotated[str, Field(min_length=1, max_length=63)]


class CredentialsSecret(Part):
    """A Secret with a key pair."""

    name: ObjectName = Field(
        description="Name of the Secret, in the object's own namespace. It is mounted, never read by the operator."
    )
    access_key_entry: Entry = Field(
        default="AWS_ACCESS_KEY_ID",
        description="Entry of the Secret that holds the access key. The default is the name that most tools give it.",
    )
    secret_key_entry: Entry = Field(
        default="AWS_SECRET_ACCESS_KEY",
        description="Entry of the Secret that holds the secret key. The default is the name that most tools give it.",
    )
    rules = (
        Rule(
            "self.accessKeyEntry != self.secretKeyEntry",
            "accessKeyEntry and secretKeyEntry must name two entries",
            at=".secretKeyEntry",
        ),
    )


class CaBundle(Part):
    """Certificates that vouch for a store."""

    name: ObjectName = Field(description="Name of the ConfigMap, in the object's own namespace.")
    key: Entry = Field(
        default="ca.crt",
        description="Entry of the ConfigMap that holds the certificates in PEM. The default is what Kubernetes "
        "itself calls its own.",
    )


class StoreAddress(Part):
    """A prefix of a bucket, and where it answers."""

    uri: StoreUri = Field(
        description="Bucket and prefix, as s3://bucket/prefix. Without credentials and options: those have fields of "
        "their own."
    )
    endpoint: Endpoint | None = Field(
        default=None,
        description="Where the service answers, as https://host:port. Left out, it is Amazon's endpoint of the region.",
    )
    region: Region | None = Field(
        default=None,
        description="Region of the bucket, which is part of each request's signature. Left out, it is us-east-1, "
        "which stores without regions take.",
    )


class WeightStore(StoreAddress):
    """The store of a run, with what opens it."""

    credentials_secret_ref: CredentialsSecret | None = Field(
        default=None,
        description="Secret with the key pair: a writer's in a TrainingRun, in a RolloutPool one that reads the run "
        "and writes heartbeats "
        "and leases only. Left out, the pods' own identity is used (workload identity): name the "
        "ServiceAccount that bears it.",
    )
    ca_bundle_ref: CaBundle | None = Field(
        default=None,
        description="ConfigMap with the certificates that vouch for the endpoint. Left out, the public authorities do.",
    )
    rules = (
        Rule(
            "!has(self.caBundleRef) || (has(self.endpoint) && self.endpoint.startsWith('https://'))",
            "caBundleRef needs an endpoint that begins with https://",
            at=".caBundleRef",
            reason="FieldValueForbidden",
        ),
    )
