"""E-mails (RFC 5322): sender, date and the text of the body, with forwarded mails; other attachments are only named."""

from __future__ import annotations

from collections.abc import Iterator
from email import policy
from email.message import EmailMessage, MIMEPart
from email.parser import BytesParser

from trainyard.data.quarantine import BadRow
from trainyard.data.readers.markup.archives import DAMAGE, damaged_file_error
from trainyard.data.readers.markup.html import read_html

MAX_PARTS = 1000
"""Of a mail, and of its parts that contain others."""
MAX_DEPTH = 10
"""Of mails that contain mails."""
SHOWN = ("From", "To", "Date")


def read_eml(data: bytes, name: str) -> tuple[str, str]:
    """(subject, headers and text of the mail)."""
    if data.lower().count(b"boundary=") > MAX_PARTS:  # the parser compares each line with each of those that are open
        raise BadRow("too_large", f"the mail has more than {MAX_PARTS:,} parts of parts")
    try:
        mail = BytesParser(policy=policy.default).parsebytes(data)
        if sum(1 for _ in zip(range(MAX_PARTS + 1), mail.walk(), strict=False)) > MAX_PARTS:
            raise BadRow("too_large", f"the mail has more than {MAX_PARTS:,} parts")
        if not any(mail[header] for header in (*SHOWN, "Subject")):
            raise BadRow("unreadable", "the file has no headers of a mail")
        text = "\n\n".join(mail_blocks(mail, name))
        subject = str(mail["Subject"] or "")
    except DAMAGE as error:
        raise damaged_file_error("mail", error) from error
    return subject, text + "\n"


def mail_blocks(mail: EmailMessage, name: str, depth: int = 0) -> Iterator[str]:
    """Headers, body and attachments."""
    if depth > MAX_DEPTH:
        raise BadRow("too_deep", f"more than {MAX_DEPTH} mails are inside of each other")
    headers = [f"{header}: {' '.join(str(mail[header]).split())}" for header in SHOWN if mail[header]]
    yield "\n".join(headers)
    body = mail.get_body(preferencelist=("plain", "html"))
    if body is not None and (text := body_text(body, name)):
        yield text
    for part in mail.iter_attachments():
        if part.get_content_type() == "message/rfc822":
            inner = part.get_content()
            yield f"# {' '.join(str(inner['Subject'] or 'Forwarded mail').split())}"
            yield from mail_blocks(inner, name, depth + 1)
        elif part.get_filename():
            yield f"Attachment: {' '.join(str(part.get_filename()).split())}"


def body_text(body: MIMEPart, name: str) -> str:
    content = body.get_content()
    if body.get_content_type() != "text/html":
        return str(content).replace("\r\n", "\n").strip()
    return read_html(f"<meta charset=utf-8>{content}".encode(), name)[1].strip()
