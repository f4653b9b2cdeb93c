"""The places at which a night may die without harm: name -> what has happened up to there.

Each is passed by the night through `world.at(name)`. `trainyard.compute.child.faultpoint` ends the process there when
`TRAINYARD_FAULT` names it; the simulator raises a crash there, or lets another process act. A test kills a real night
at each of them and compares what is left after a second run with a night that was not killed.
"""

from __future__ import annotations

POINTS: dict[str, str] = {
    "night.begun": "the night's record is written",
    "night.server.start": "the model server is about to be started",
    "night.server.started": "the model server was started, it does not answer yet",
    "night.server.ready": "the model server answers",
    "night.server.warm": "the schema is compiled",
    "night.document.read": "a document was read, the model was not asked",
    "night.document.answered": "the model answered, nothing is written",
    "night.graph.before": "a batch of answers is about to be written to the graph",
    "night.graph.after": "the graph has a batch, the ledger does not",
    "night.ledger.after": "graph and ledger have a batch",
    "night.server.drained": "no request is in flight any more",
    "night.server.stopped": "the model server was stopped, the device was not looked at",
    "night.device.free": "the device is proven free",
    "night.corpus.counted": "the tuples of a bucket are counted",
    "night.snapshot.after": "a bucket's snapshot is written",
    "night.snapshot.synced": "the snapshot is in the object store",
    "night.marker.before": "a marker is about to be published",
    "night.marker.after": "a marker exists and is not claimed",
    "night.claim.before": "a marker is about to be claimed",
    "night.claim.after": "a marker is claimed, no training has begun",
    "night.train.before": "the rows are written, the training is about to start",
    "night.train.after": "the adapter is trained and not evaluated",
    "night.judge.after": "the gate has decided",
    "night.version.before": "a version is about to be registered",
    "night.version.after": "the version is registered, it is nowhere else",
    "night.upload.file": "one file of a version is uploaded",
    "night.upload.before-manifest": "all files are uploaded, no reader sees them",
    "night.upload.manifest": "the version is published and not verified",
    "night.publish.verified": "what was published is what was trained",
    "night.deploy.before": "the live pointer is about to be switched",
    "night.deploy.after": "the new version is live, its marker is still claimed",
    "night.complete.before": "the marker is about to be completed",
    "night.complete.after": "the marker is completed, no report is written",
    "night.report.before": "everything is done, the report is not written",
    "night.report.after": "the report is written",
}
