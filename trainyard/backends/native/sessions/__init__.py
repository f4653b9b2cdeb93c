"""The child of a step session: one `Session` behind a socket."""
