"""Renderers: a conversation as token ids with a loss mask, and back from ids to a message.

`RENDERERS` is the table; this package imports neither torch nor transformers, so that a name can be checked at once.
`rendering.Renderer` joins a row with a tokenizer. `choice.choose` turns the setting `template` into a template.

To add a renderer: a row in `table.py`, and its template is covered by the parity tests, which go over the table.
Whether turns extend one another is measured, so a wrong flag in a row fails at once.
"""
