"""Data sets of the Hugging Face Hub: `datasets` says which files a split has, `huggingface_hub` caches them.

`datasets` reads the card's `configs`, and the names of files where a card has none. Its own loaders are not used: files
are read in limited children as those of a folder are. A data set that needs code of its own is refused; nothing of a
data set is run. The token is `HF_TOKEN` or that of `hf auth login`, as for models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.data.paths import ROW_SUFFIXES, find_suffix
from trainyard.data.remote.fetching import FetchJob, LocalSet, Pin, RemoteFile, fetch_in_order
from trainyard.errors import InvalidInput, NotFound, TrainyardError, Unavailable, first_line
from trainyard.loading import load_object
from trainyard.settings import Settings
from trainyard.spec.nodes import HubSet, SourceSet

READ_SUFFIXES = ROW_SUFFIXES | {".txt"}


def is_hub_set(source: SourceSet) -> bool:
    """Return whether a set is a data set of the Hub."""
    return source.hub is not None


def open_place(source: SourceSet, _settings: Settings) -> HubPlace:
    """Return the split that a set names."""
    assert source.hub is not None
    return HubPlace(source.hub)


def fetch_set(job: FetchJob) -> Iterator[LocalSet]:
    """Fetch the files of the split in their order. Raises what `HubPlace` raises."""
    return fetch_in_order(open_place(job.source, job.settings), job)


@dataclass(frozen=True)
class HubPlace:
    """A split of a data set at a revision."""

    hub_set: HubSet
    lasting: bool = True

    @property
    def address(self) -> str:
        return str(self.hub_set)

    def require_access(self, settings: Settings) -> None:
        """Do nothing: the Hub itself decides what an account may read."""

    def look_up(self) -> tuple[str, Sequence[RemoteFile]]:
        """Return the commit, and the files of the split in their order.

        Raises `NotFound` (`E-DATA-NOT-FOUND`), `InvalidInput` (`E-DATA-UNREADABLE`), `Unavailable` (`E-URL`).
        """
        hub, datasets = load_object("huggingface_hub"), load_object("datasets")
        with asking(self.hub_set):
            commit = hub.HfApi().dataset_info(self.hub_set.name, revision=self.hub_set.revision).sha
            builder = datasets.load_dataset_builder(self.hub_set.name, self.hub_set.config, revision=commit)
        files = builder.config.data_files or {}
        if self.hub_set.split not in files:
            raise NotFound(
                f"The data set {self.hub_set.name} has no split {self.hub_set.split!r}.",
                why=f"It has {', '.join(map(str, files)) or 'none'}.", do="Correct `split`.", code="E-DATA-NOT-FOUND",
            )  # fmt: skip
        prefix = f"hf://datasets/{self.hub_set.name}@{commit}/"
        names = [str(file).removeprefix(prefix) for file in files[self.hub_set.split]]
        unread = sorted({find_suffix(name) or "(no extension)" for name in names} - READ_SUFFIXES)
        if unread:
            raise InvalidInput(
                f"The data set {self.hub_set.name} has files that are not read: {', '.join(unread)}.",
                why=f"Read are {', '.join(sorted(READ_SUFFIXES))}.",
                do="Choose a config with such files, or the Hub's own Parquet: `revision: refs/convert/parquet`.",
                code="E-DATA-UNREADABLE",
            )
        return commit, [RemoteFile(name) for name in names]

    def fetch(self, pin: Pin, file: RemoteFile, folder: Path) -> tuple[Path, Path]:
        """Return the file in the Hub's cache, downloaded if it is not there."""
        hub = load_object("huggingface_hub")
        with asking(self.hub_set):
            file_name = hub.hf_hub_download(self.hub_set.name, file.name, repo_type="dataset", revision=pin.revision)
        path = Path(file_name).absolute()
        return path, path.parents[len(Path(file.name).parts) + 1]  # snapshots/<commit>/<name>, linked to blobs/


@contextmanager
def asking(hub_set: HubSet) -> Iterator[None]:
    """Give the errors of the Hub's libraries their meaning."""
    errors: Any = load_object("huggingface_hub.errors")
    offline: Any = load_object("datasets.exceptions")
    try:
        yield
    except errors.GatedRepoError as error:
        raise NotFound(
            f"The Hub does not give the data set {hub_set.name!r} to this account.",
            why="The data set is gated: its owner asks every user to accept its terms first.",
            do=f"Accept the terms at https://huggingface.co/datasets/{hub_set.name} and set HF_TOKEN, then run it "
            "again.",
            code="E-DATA-NOT-FOUND",
        ) from error
    except (errors.RevisionNotFoundError, errors.RepositoryNotFoundError) as error:
        raise NotFound(
            f"The Hub has no data set {hub_set.name!r} at {hub_set.revision!r}, or does not show it to this account.",
            do="Correct the name or the revision, or set HF_TOKEN to an account that may read it.",
            code="E-DATA-NOT-FOUND",
        ) from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise unreachable(hub_set, error) from error
    except offline.DatasetNotFoundError as error:
        raise unreachable(hub_set, error) from error
    except (ConnectionError, TimeoutError) as error:
        raise unreachable(hub_set, error) from error
    except (ValueError, RuntimeError, FileNotFoundError) as error:
        if isinstance(error, TrainyardError):
            raise
        raise InvalidInput(
            f"The data set {hub_set.name!r} cannot be read with these settings.",
            why=f"{first_line(error)} A data set that needs code of its own is never read.",
            do="Correct `config`, or name a revision with data files, such as refs/convert/parquet.",
            code="E-DATA-UNREADABLE",
        ) from error


def unreachable(hub_set: HubSet, error: BaseException) -> TrainyardError:
    return Unavailable(
        f"The data set {hub_set.name!r} is not on this machine and could not be downloaded.",
        why=first_line(error),
        do="Run it again when the Hub can be reached.",
        code="E-URL",
    )
