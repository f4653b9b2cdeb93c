"""Markers: one file says that one bucket is ready to be trained, and exactly one worker takes it.

    <run>-<tenant>-<role>-<bucket>.json            pending
    <run>-<tenant>-<role>-<bucket>.json.claimed    one owner trains it, as long as its lease is renewed
    <run>-<tenant>-<role>-<bucket>.json.completed  published and verified
    <run>-<tenant>-<role>-<bucket>.json.failed     given up, with the reason

A claim carries a fencing number, which grows with every owner. An owner that slept beyond its lease and was replaced
finds a higher number, and every later effect of it is refused (`E-MARKER-LOST`); `verify` asks exactly that, right
before an effect. An owner whose process or machine is gone is replaced at once, any other when its lease has run out.

`LocalMarkers` keeps them in a folder, `ObjectMarkers` in an object store; both are a `MarkerStore`.
Fencing: M. Kleppmann, Designing Data-Intensive Applications, section 8.4.
"""
