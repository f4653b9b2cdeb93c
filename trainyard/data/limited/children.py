"""Documents in children: each has limits of its own, a bad one costs only itself, the next ones get a fresh child.

A child is a fork of the process that reads the set, so it begins with everything imported: about 5 ms. It reads up to
`documents_per_child` documents, and ends at the first breach. Results go back in order, one message each, so the
document that a dead child was reading is the first one without a message.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from trainyard.data.limited.requests import (
    ParsedItem,
    SentError,
    Silence,
    TooLong,
    describe_end,
    pack_error,
    read_frames,
    write_frame,
)
from trainyard.data.quarantine import BadRow
from trainyard.data.readers.streams import Limits
from trainyard.data.rows import DocumentRow
from trainyard.errors import TrainyardError
from trainyard.sandbox.limits import PROGRAMS, allow_cpu, die_with_parent, limit, limit_memory, refuse_calls

BREACHES = ("time_limit", "memory_limit", "reader_crashed")
"""Why a document was left out that ended its child."""
MEMORY_EXIT = 70
"""`EX_SOFTWARE`: the child ran into its memory limit and could say so."""
OPEN_FILES = 64
FRAME_MARGIN_BYTES = 1 << 16
PIPE_BYTES = 1 << 20
F_SETPIPE_SZ = 1031


class DocumentReply(msgspec.Struct, array_like=True):
    """Outcome of one document: the row, or the reason why there is none."""

    row: DocumentRow | None = None
    reason: str = ""
    detail: str = ""
    error: SentError | None = None
    """The error of the whole file, if it is more than a bad row."""
    parsed: ParsedItem | None = None
    """What a parsed item gives instead of a row."""


Work = Callable[[int], DocumentReply]
"""Reads the document of this index; runs in the child. Raises `BadRow` and what reading raises."""
ENCODER = msgspec.msgpack.Encoder()
DECODER = msgspec.msgpack.Decoder(DocumentReply)


@dataclass(frozen=True)
class Batch:
    """Documents that are read in one or more children."""

    sizes: Sequence[int]
    """Bytes of each file: a large one may take more time."""
    work: Work
    limits: Limits

    def replies(self) -> Iterator[DocumentReply]:
        """Yield one reply for each document, in order."""
        done = 0
        while done < len(self.sizes):
            for reply in self.child_replies(done):
                done += 1
                yield reply

    def child_replies(self, first: int) -> Iterator[DocumentReply]:
        """Yield the replies of one child; the last one reports its breach, if there was one."""
        last = min(len(self.sizes), first + self.limits.documents_per_child)
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(receive)
            self.run_child(send, first, last)
        os.close(send)
        # Large enough for many documents, so that the processes rarely wait; a smaller pipe only waits more often.
        with contextlib.suppress(OSError):
            fcntl.fcntl(receive, F_SETPIPE_SZ, PIPE_BYTES)
        done, breach = first, None
        try:
            # A child that waits for a disk or is stopped uses no CPU time.
            wait_s = 30 + 4 * max(map(self.cpu_s, range(first, last)))
            for payload in read_frames(receive, self.limits.text + FRAME_MARGIN_BYTES, wait_s):
                yield DECODER.decode(payload)
                done += 1
        except Silence:
            breach = "time_limit", "its reader gave no sign of life"
        except TooLong:
            breach = "too_large", f"its text is over {self.limits.text:,} bytes"
        except msgspec.DecodeError:
            breach = "reader_crashed", "its reader sent something else than a document"
        finally:
            os.close(receive)
            if done < last:
                with contextlib.suppress(ProcessLookupError):  # it has already ended
                    os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
        if done < last:
            if breach is None and os.WIFEXITED(status) and os.WEXITSTATUS(status) == MEMORY_EXIT:
                most_mib = self.limits.document_memory >> 20
                breach = "memory_limit", f"reading it takes more than {most_mib} MiB of memory"
            ended = describe_end(status) or ("reader_crashed", "its reader ended too early")
            yield DocumentReply(None, *(breach or ended))

    def cpu_s(self, index: int) -> float:
        return self.limits.document_cpu_s + self.limits.document_cpu_s_per_mib * self.sizes[index] / (1 << 20)

    def run_child(self, send: int, first: int, last: int) -> None:
        """Read the documents and end the process."""
        code = 1
        try:
            # No file is written, no program or connection is started. Of the open files only the pipe and the standard
            # error remain: the others belong to the set that is being written.
            die_with_parent()
            os.closerange(3, send)
            os.closerange(send + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            limit_memory(self.limits.document_memory)
            limit(resource.RLIMIT_FSIZE, 0)
            limit(resource.RLIMIT_CORE, 0)
            limit(resource.RLIMIT_NOFILE, OPEN_FILES)
            refuse_calls(PROGRAMS)
            for index in range(first, last):
                allow_cpu(self.cpu_s(index))
                write_frame(send, ENCODER.encode(self.read_one(index)))
            code = 0
        except MemoryError:
            code = MEMORY_EXIT
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def read_one(self, index: int) -> DocumentReply:
        try:
            reply = self.work(index)
        except BadRow as bad:
            return DocumentReply(None, bad.reason, bad.detail)
        except TrainyardError as error:
            return DocumentReply(None, error.code, error.why or error.what, pack_error(error))
        except (MemoryError, OSError):
            raise
        except SystemError as error:
            if not isinstance(error.__cause__, MemoryError):  # which orjson reports like that
                return DocumentReply(None, "reader_failed", f"its reader failed: {error}"[:300])
            raise error.__cause__ from error
        except Exception as error:
            return DocumentReply(None, "reader_failed", f"its reader failed: {type(error).__name__}: {error}"[:300])
        if reply.row is not None and len(reply.row.text) > self.limits.text:
            return DocumentReply(None, "too_large", f"its text is over {self.limits.text:,} characters")
        return reply
