"""Are the pairs that the rules take from documents worth training on? Judged by a rubric, on documents of strangers.

A corpus is a folder with one folder for each source (a project, a public body); it is not part of the repository. Two
readers judge the same pairs in different order, without seeing each other's judgement:

    python -m benchmarks.pairs_by_rule sample CORPUS --per-source 15 --seed 1 --order 1 > first.jsonl
    python -m benchmarks.pairs_by_rule sample CORPUS --per-source 15 --seed 1 --order 2 > second.jsonl
    python -m benchmarks.pairs_by_rule score first-judged.jsonl second-judged.jsonl --held-out SOURCE …
    python -m benchmarks.pairs_by_rule rate CORPUS
    python -m benchmarks.pairs_by_rule coverage CORPUS facts.jsonl
    python -m benchmarks.pairs_by_rule retrieve CORPUS/SOURCE questions.jsonl

A judgement is one line `{"id": …, "answerable": 1, "correct": 1, "not_trivial": 1, "natural": 1}`; a pair is good when
all four hold:

answerable   a reader of the page can tell from the question which fact is wanted, and the page has it
correct      the answer answers this question, is whole without the sentences around it, and is the page's text
not_trivial  the question does not contain the answer, and the answer says something that a person may want to know
natural      a person could write the question like this; slight stiffness is allowed, broken grammar is not

`facts.jsonl` has the facts that a person marked before seeing any pair: `{"document": "source/page.md", "fact":
"words that every answer with this fact has"}`. `questions.jsonl` has `{"question": …, "fact": "words of the answer"}`:
the share of questions is counted for which BM25 finds a pair with the fact first, or among the first three.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from trainyard.data.extractive import english, german, sentences
from trainyard.data.extractive.outline import outline
from trainyard.data.extractive.pairs import Pair, pairs
from trainyard.data.language import GERMAN, detect_language
from trainyard.data.quarantine import BadRow
from trainyard.data.readers.documents import find_type, read_document
from trainyard.data.rows import DocumentRow
from trainyard.spec.axes.data import GenerationTemplate

LEAST_GOOD, LEAST_COVERAGE, MOST_WORDS = 0.85, 0.60, 25.0
RUBRIC = ("answerable", "correct", "not_trivial", "natural")
STEM = 6
"""Letters of a word that are compared."""
K1, B = 1.5, 0.75
"""The usual parameters of BM25."""


def read_documents(folder: Path) -> Iterator[DocumentRow]:
    """Yield the readable documents below a folder, by name."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        try:
            if find_type(name)[0] != "text" or path.suffix in (".txt", ".text"):
                document = read_document(path.read_bytes(), name)
                document.source = name
                yield document
        except BadRow as error:
            print(f"{name}: {error}", file=sys.stderr)


def pairs_of(document: DocumentRow) -> list[Pair]:
    return pairs(document, GenerationTemplate.QA, wordings=3)


def prose_words(document: DocumentRow) -> int:
    """Return the words of headings, paragraphs, items and cells; code blocks and front matter are not prose."""
    sections = outline(document.kind, document.text)
    texts = [section.heading for section in sections]
    texts += [block.text for section in sections for block in section.blocks]
    texts += [cell for section in sections for row in section.rows for cell in row]
    return sum(map(sentences.num_words, texts))


def sources_of(corpus: Path) -> list[Path]:
    return sorted(path for path in corpus.iterdir() if path.is_dir())


def print_sample(corpus: Path, per_source: int, seed: int, order: int) -> None:
    """Print pairs of each source, in an order that depends on `order` only."""
    rows = []
    for source in sources_of(corpus):
        document_pairs = [(document, pair) for document in read_documents(source) for pair in pairs_of(document)]
        for document, pair in random.Random(seed).sample(document_pairs, min(per_source, len(document_pairs))):
            question = random.Random(f"{seed}{pair.id}").choice(pair.wordings)
            rows.append(
                {
                    "id": f"{source.name}/{pair.id}", "page": document.source, "kind": pair.rule,
                    "question": question, "answer": pair.answer,
                }
            )  # fmt: skip
    random.Random(order).shuffle(rows)
    for row in rows:
        print(json.dumps(row, ensure_ascii=False))


def print_rates(corpus: Path) -> bool:
    """Print documents, pairs and words a pair of each source; whether all together reach the bar."""
    total = Counter[str]()
    for source in sources_of(corpus):
        counts, kinds = Counter[str](), Counter[str]()
        for document in read_documents(source):
            pairs = pairs_of(document)
            kinds.update(pair.rule for pair in pairs)
            counts.update(documents=1, pairs=len(pairs), words=prose_words(document))
        total += counts
        rate = counts["words"] / max(1, counts["pairs"])
        shares = ", ".join(f"{name} {count}" for name, count in kinds.most_common(6))
        print(f"{source.name}: {counts['documents']} documents, {counts['pairs']} pairs, {rate:.1f} words a pair")
        print(f"    {shares}")
    rate = total["words"] / max(1, total["pairs"])
    print(
        f"all: {total['documents']} documents, {total['pairs']} pairs, {rate:.1f} words a pair (at most {MOST_WORDS})"
    )
    return rate <= MOST_WORDS


def plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def print_coverage(corpus: Path, facts: Path) -> bool:
    """Print the share of the marked facts that an answer of the same page has."""
    marked: dict[str, list[str]] = defaultdict(list)
    for line in facts.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        marked[row["document"]].append(row["fact"])
    hits = total = 0
    for name, page_facts in marked.items():
        document = read_document((corpus / name).read_bytes(), name)
        answers = [plain(pair.answer) for pair in pairs_of(document)]
        missing = [fact for fact in page_facts if not any(plain(fact) in answer for answer in answers)]
        hits, total = hits + len(page_facts) - len(missing), total + len(page_facts)
        print(f"{name}: {len(page_facts) - len(missing)} of {len(page_facts)}; missing: {missing}")
    print(f"all: {hits} of {total} facts, {hits / total:.1%} (at least {LEAST_COVERAGE:.0%})")
    return hits / total >= LEAST_COVERAGE


def read_judgements(path: Path) -> dict[str, dict[str, bool]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {row["id"]: {name: bool(row[name]) for name in RUBRIC} for row in rows}


def good(judgement: dict[str, bool]) -> bool:
    return all(judgement.values())


def kappa(first: list[bool], second: list[bool]) -> float:
    """Return Cohen's kappa of two lists of yes and no; 1 where both say the same for every pair."""
    agreed = sum(a == b for a, b in zip(first, second, strict=True)) / len(first)
    yes = sum(first) / len(first) * sum(second) / len(second)
    by_chance = yes + (1 - sum(first) / len(first)) * (1 - sum(second) / len(second))
    return 1.0 if by_chance == 1 else (agreed - by_chance) / (1 - by_chance)


def print_score(first: Path, second: Path, held_out: list[str]) -> bool:
    """Print the share of good pairs by reader and source, and how far the readers agree."""
    first_votes, second_votes = read_judgements(first), read_judgements(second)
    ids = sorted(first_votes.keys() & second_votes.keys())
    verdicts = [(good(first_votes[key]), good(second_votes[key])) for key in ids]
    share = sum(sum(pair) for pair in verdicts) / (2 * len(ids))
    by_source: dict[str, list[bool]] = defaultdict(list)
    for key, pair in zip(ids, verdicts, strict=True):
        by_source[key.split("/")[0]] += pair
    for source, values in by_source.items():
        mark = " (held out)" if source in held_out else ""
        print(f"{source}{mark}: {sum(values) / len(values):.1%} of {len(values) // 2} pairs")
    apart = [value for source in held_out for value in by_source[source]]
    if apart:
        print(f"held out: {sum(apart) / len(apart):.1%}")
    for name in RUBRIC:
        print(f"{name}: {sum(first_votes[key][name] + second_votes[key][name] for key in ids) / (2 * len(ids)):.1%}")
    agreement = kappa([pair[0] for pair in verdicts], [pair[1] for pair in verdicts])
    print(f"good: {share:.1%} of {len(ids)} pairs (at least {LEAST_GOOD:.0%}), kappa {agreement:.2f}")
    return share >= LEAST_GOOD


def stems(text: str, language: str) -> list[str]:
    """The first letters of the words of a text that say something; a question's "how" and "can" match any pair."""
    content = german.content_words if language == GERMAN else english.content_words
    return [word[:STEM] for word in content(text)]


class Ranking:
    """BM25 over texts."""

    def __init__(self, texts: list[str], language: str) -> None:
        self.language = language
        self.counts = [Counter(stems(text, language)) for text in texts]
        self.lengths = [sum(counts.values()) for counts in self.counts]
        self.mean = sum(self.lengths) / max(1, len(texts))
        self.having = Counter(word for counts in self.counts for word in counts)

    def best(self, query: str, count: int) -> list[int]:
        query_stems = set(stems(query, self.language))
        scores = [self.score(query_stems, number) for number in range(len(self.counts))]
        return sorted(range(len(scores)), key=lambda number: (-scores[number], number))[:count]

    def score(self, stems: set[str], number: int) -> float:
        counts, total = self.counts[number], 0.0
        for word in stems & counts.keys():
            rarity = math.log(1 + (len(self.counts) - self.having[word] + 0.5) / (self.having[word] + 0.5))
            spread = K1 * (1 - B + B * self.lengths[number] / self.mean)
            total += rarity * counts[word] * (K1 + 1) / (counts[word] + spread)
        return total


def print_retrieval(folder: Path, questions: Path) -> bool:
    """Print the share of a person's questions for which a pair with the right fact is there, and is found."""
    pairs = [pair for document in read_documents(folder) for pair in pairs_of(document)]
    language = detect_language(" ".join(pair.answer for pair in pairs))
    ranking = Ranking([f"{pair.wordings[0]} {pair.answer}" for pair in pairs], language)
    rows = [json.loads(line) for line in questions.read_text(encoding="utf-8").splitlines()]
    counts = Counter[str]()
    for row in rows:
        fact = plain(row["fact"])
        best = ranking.best(row["question"], 3)
        hits = [fact in plain(pairs[number].answer) for number in best]
        counts.update(
            there=int(any(fact in plain(pair.answer) for pair in pairs)), first=int(hits[0]), three=int(any(hits))
        )
        if not any(hits):
            print(f"not found: {row['question']} ({row['fact']})")
    for name, text in (
        ("there", "have a pair with the fact"),
        ("first", "find it first"),
        ("three", "find it in three"),
    ):
        print(f"{counts[name]} of {len(rows)} questions {text} ({counts[name] / len(rows):.0%})")
    return counts["three"] / len(rows) >= LEAST_COVERAGE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    sample = commands.add_parser("sample")
    sample.add_argument("corpus", type=Path)
    sample.add_argument("--per-source", type=int, default=15)
    sample.add_argument("--seed", type=int, default=1)
    sample.add_argument("--order", type=int, default=1)
    score = commands.add_parser("score")
    score.add_argument("first", type=Path)
    score.add_argument("second", type=Path)
    score.add_argument("--held-out", nargs="*", default=[])
    commands.add_parser("rate").add_argument("corpus", type=Path)
    for name in ("coverage", "retrieve"):
        command = commands.add_parser(name)
        command.add_argument("corpus", type=Path)
        command.add_argument("rows", type=Path)
    args = parser.parse_args()
    if args.command == "sample":
        print_sample(args.corpus, args.per_source, args.seed, args.order)
        return 0
    if args.command == "score":
        return 0 if print_score(args.first, args.second, args.held_out) else 1
    if args.command == "rate":
        return 0 if print_rates(args.corpus) else 1
    report = print_coverage if args.command == "coverage" else print_retrieval
    return 0 if report(args.corpus, args.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
