"""The wordings of questions: for each language and rule eight of them, of which the last is the reserved one.

They are in `wordings.json`, by language (`""` is the neutral one) and rule; a rule with one text has it eight times.
`{topic}` and `{title}` become the fact's own words; `{clause}` of the rule `named` is the question as a subordinate
clause ("how long the battery lasts"). Neighbours in the list differ in form, so that two wordings of one fact do, too.

Adding a language: a table in `wordings.json`, a row in `trainyard.data.language`, and what `grammar` knows of it.
"""

from __future__ import annotations

import json
from pathlib import Path

FORMS = 8
_TEXTS = json.loads(Path(__file__).with_name("wordings.json").read_text(encoding="utf-8"))
WORDINGS: dict[str, dict[str, tuple[str, ...]]] = {
    language: {rule: (forms,) * FORMS if isinstance(forms, str) else tuple(forms) for rule, forms in rules.items()}
    for language, rules in _TEXTS["questions"].items()
}
"""Language -> rule -> eight wordings; rules of code have English ones only."""
INSTRUCTIONS: dict[str, dict[str, str]] = _TEXTS["instructions"]
"""Language -> rule -> the fact's question as an instruction to write."""
