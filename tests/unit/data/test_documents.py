"""Documents of every type: title, text with an outline, and what happens to broken ones."""

from __future__ import annotations

import gzip
import io
import re
import zipfile
from pathlib import Path

import docx
import pytest
from docx.oxml import parse_xml
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from tests.unit.data.reading import Result, read_all, read_text, settings_for
from trainyard.data.limited.sets import walk
from trainyard.data.quarantine import BadRow
from trainyard.data.readers import documents
from trainyard.data.readers.streams import Limits
from trainyard.errors import InvalidInput
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import SourceSet


def pdf(text: str, *, title: str = "", password: str = "") -> bytes:
    """A one-page PDF with a line of text."""
    writer = PdfWriter()
    page = writer.add_blank_page(300, 300)
    font = DictionaryObject({NameObject("/Type"): NameObject("/Font"), NameObject("/Subtype"): NameObject("/Type1"),
                             NameObject("/BaseFont"): NameObject("/Helvetica")})  # fmt: skip
    fonts = DictionaryObject({NameObject("/F1"): writer._add_object(font)})
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    content = DecodedStreamObject()
    content.set_data(f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET".encode())
    page[NameObject("/Contents")] = writer._add_object(content)
    if title:
        writer.add_metadata({"/Title": title})
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    stream = io.BytesIO()
    writer.write(stream)
    return stream.getvalue()


def write_word() -> bytes:
    document = docx.Document()
    document.add_heading("Rails", 0)
    document.add_paragraph("Iron bars.")
    document.add_heading("Gauge", 2)
    document.add_paragraph("Wide", style="List Bullet")
    table = document.add_table(2, 2)
    for row, cells in zip(table.rows, [("Name", "Width"), ("Standard", "1435 mm")], strict=True):
        for cell, text in zip(row.cells, cells, strict=True):
            cell.text = text
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


HTML = b"""<!doctype html><html><head><title>Site | Rails</title><style>p {}</style></head><body>
<nav>Menu</nav><h1>Rails &amp; ties</h1><p>Iron
bars.<br>Two.</p><!-- hidden --><ul><li>Wide</li><li>Narrow</li></ul><pre>a
  b</pre><table><tr><th>Name</th><th>Width</th></tr><tr><td>Standard</td><td>1435</td></tr></table>
<script>alert(1)</script></body></html>"""


@pytest.mark.parametrize(
    ("name", "data", "kind", "title", "text"),
    [
        ("a.md", b"\xef\xbb\xbfIntro\r\n\r\n## Rails  ##\r\n", "markdown", "Rails", "Intro\n\n## Rails  ##\n"),
        ("a.md", b"---\ntitle: 'Front'\n---\n# Rails\n", "markdown", "Front", "---\ntitle: 'Front'\n---\n# Rails\n"),
        ("a.md", b"```\n# code\n```\nRails\n=====\n", "markdown", "Rails", "```\n# code\n```\nRails\n=====\n"),
        ("a.markdown", b"No heading", "markdown", "a.markdown", "No heading"),
        ("a.txt", "Größe".encode("utf-16"), "text", "a.txt", "Größe"),
        ("deep/a.py", b"x = 1\n", "code", "a.py", "x = 1\n"),
        ("a.rst", b"=====\nRails\n=====\n\nIron\n----\n", "rst", "Rails", "=====\nRails\n=====\n\nIron\n----\n"),
        ("a.rst", b"plain", "rst", "a.rst", "plain"),
        ("a.pdf", pdf("Iron bars"), "pdf", "Iron bars", "Iron bars\n"),
        ("a.pdf", pdf("Iron bars", title="Rails"), "pdf", "Rails", "Iron bars\n"),
        (
            "a.html", HTML, "html", "Rails & ties",
            "# Rails & ties\n\nIron bars.\nTwo.\n\n- Wide\n- Narrow\n\n```\na\n  b\n```\n\n"
            "| Name | Width |\n| --- | --- |\n| Standard | 1435 |\n",
        ),
        (
            "a.docx", write_word(), "docx", "Rails",
            "# Rails\n\nIron bars.\n\n## Gauge\n\n- Wide\n\n| Name | Width |\n| --- | --- |\n| Standard | 1435 mm |\n",
        ),
    ],
)  # fmt: skip
def test_documents_have_title_and_text(name: str, data: bytes, kind: str, title: str, text: str) -> None:
    document = documents.read_document(data, name)
    assert (document.kind, document.title) == (kind, title)
    assert document.text == text
    assert len(document.doc_id) == 16


def exploding_docx() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b" " * 5_000_000)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "reason", "detail"),
    [
        ("a.md", b"caf\xe9", "not_utf8", "byte 3 is not UTF-8"),
        ("a.md", b"\x89PNG" + bytes(100), "binary", "a.md is a binary file"),
        ("a.md", b"   \n", "empty", "the file is empty"),
        ("a.md", b"x" * 300 + b"\x00", "nul_character", "the text contains the character"),
        ("a.html", b"<html><body></body></html>", "empty", "the text is empty"),
        ("a.pdf", b"%PDF-1.4 garbage", "unreadable", "the PDF is damaged"),
        ("a.pdf", b"", "unreadable", "the PDF is damaged"),
        ("a.pdf", pdf("", title="x"), "no_text", "scanned pages need text recognition"),
        ("a.pdf", pdf("secret", password="x"), "encrypted", "the PDF needs a password"),
        ("a.docx", b"PK garbage", "unreadable", "the DOCX is damaged"),
        ("a.docx", exploding_docx(), "too_large", "the DOCX expands to 5,000,000 bytes"),
    ],
)
def test_broken_documents_say_why(name: str, data: bytes, reason: str, detail: str) -> None:
    with pytest.raises(BadRow, match=detail) as caught:
        documents.read_document(data, name)
    assert caught.value.reason == reason


def make_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    for name, content in {
        "b.md": "# B", "a/c.py": "x = 1", "a/.hidden.md": "no", ".git/x.md": "no", "node_modules/m.md": "no",
        "rows.jsonl": "{}", "picture.png": "no", "a/z.txt": "Z", "a/LICENSE": "words",
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def read_folder(folder: Path, **config: object) -> Result:
    output = folder.parent / f"out{len(list(folder.parent.iterdir()))}"
    config.setdefault("max_bad_fraction", 0.5)
    (result,) = read_all(output, settings_for(folder), path=str(folder), **config).values()
    return result


def test_a_folder_is_read_in_a_fixed_order_and_says_what_it_skipped(tmp_path: Path) -> None:
    result = read_folder(make_folder(tmp_path))
    assert result.port is Port.DOCUMENTS
    assert [(row.source, row.kind) for row in result.rows] == [
        ("a/c.py", "code"), ("a/z.txt", "text"), ("b.md", "markdown"),
    ]  # fmt: skip
    assert result.report["skipped"] == {".jsonl": 1, ".png": 1, "(no extension)": 1}


def test_globs_choose_the_files_of_a_folder(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    assert [row.source for row in read_folder(folder, include=["*.md", "LICENSE"]).rows] == ["a/LICENSE", "b.md"]
    assert [row.source for row in read_folder(folder, exclude=["a/*"]).rows] == ["b.md"]
    assert [row.source for row in read_folder(folder, max_rows=1).rows] == ["a/c.py"]


@pytest.mark.parametrize("globs", [{"exclude": ["*"]}, {"include": ["*.txt"]}, {"exclude": ["b.*"]}])
def test_a_single_file_that_the_globs_leave_out_is_not_read(globs: dict[str, list[str]], tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    settings = settings_for(folder)
    with pytest.raises(InvalidInput, match="left out by the globs of include and exclude"):
        read_all(tmp_path / "out", settings, path=str(folder / "b.md"), **globs)
    (result,) = read_all(tmp_path / "kept", settings, path=str(folder / "b.md"), include=["*.md"]).values()
    assert [row.source for row in result.rows] == ["b.md"]


def test_broken_documents_of_a_folder_go_to_quarantine(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (folder / "bad.md").write_bytes(b"caf\xe9")
    (folder / "empty.md").write_bytes(b"")
    (folder / "pipe.md").symlink_to("/dev/zero")
    (tmp_path / "outside.md").write_text("# Outside")
    (folder / "link.md").symlink_to(tmp_path / "outside.md")
    (folder / "inner.md").symlink_to(folder / "b.md")
    result = read_folder(folder, max_bad_fraction=0.9)
    assert {entry["source"]: entry["reason"] for entry in result.quarantine} == {
        "bad.md:1": "not_utf8", "empty.md:1": "empty", "pipe.md:1": "R-PATH-ROOT", "link.md:1": "R-PATH-ROOT",
    }  # fmt: skip
    assert [row.source for row in result.rows] == ["a/c.py", "a/z.txt", "b.md", "inner.md"]


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    with pytest.raises(InvalidInput, match=r"E-DATA-NOT-FOUND: .*gone cannot be read: No such file or directory"):
        walk(folder / "gone", SourceSet(path="x"))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    with pytest.raises(InvalidInput, match=r"docs contains nothing to read\. Why: The folder contains no file"):
        read_folder(folder)
    (folder / "a.png").write_bytes(b"x")
    with pytest.raises(InvalidInput, match=r"It contains 1 \.png, none of a type that is read"):
        read_folder(folder)
    (folder / "rows.jsonl").write_text('{"text": "x"}\n')
    with pytest.raises(InvalidInput, match=r"read as documents unless a format of rows is given"):
        read_folder(folder)
    assert [row.text for row in read_folder(folder, format="text").rows] == ["x"]


def test_a_folder_of_row_files_is_one_set(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    for name in ("b.jsonl", "a.jsonl"):
        (folder / name).write_text('{"instruction": "x", "output": "y"}\n')
    (folder / "c.csv").write_text("instruction,output\nx,z\n")
    result = read_folder(folder, format="alpaca")
    assert [row.source for row in result.rows] == ["a.jsonl:1", "b.jsonl:1", "c.csv:2"]


def test_plain_text_is_one_row_a_line_when_text_is_wanted(tmp_path: Path) -> None:
    content = b"One.\r\n\r\nTwo.\ncaf\xe9\na\x00b\nThree."
    result = read_text(tmp_path, content, "a.txt", format="text")
    assert [(row.text, row.source) for row in result.rows] == [
        ("One.", "a.txt:1"), ("Two.", "a.txt:3"), ("Three.", "a.txt:6"),
    ]  # fmt: skip
    assert result.reasons == ["not_utf8", "nul_character"]
    assert [content[entry["offset"] :][:1] for entry in result.quarantine] == [b"c", b"a"]
    long = read_text(tmp_path, "x\n" + "y" * 9000 + "\nz\n", "a.txt", format="text", limits=Limits(line=100))
    assert (len(long.rows), long.reasons) == (2, ["line_too_long"])
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("One.\n")
    (folder / "b.md").write_text("Two.\n")
    assert [row.source for row in read_folder(folder, format="text").rows] == ["a.txt:1", "b.md:1"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.md", b"\x89PNG" + bytes(100), r"E-DATA-UNREADABLE: a.md is a binary file, not text"),
        ("a.md", b"", r"E-DATA-EMPTY: a.md contains nothing to read"),
        ("a", bytes(100), r"E-DATA-UNREADABLE: a is a binary file"),
        ("a.pdf", b"%PDF garbage", r"E-DATA-BAD-ROWS: 1 of 1 rows of a.pdf are bad .*unreadable"),
        ("a", b'{"text": "x"}\n', r"E-DATA-FORMAT: a contains rows for text; the chain expects documents .* format"),
        ("a", b"PAR1", r"E-DATA-UNREADABLE"),
    ],
)
def test_a_single_file_that_is_no_document(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_text(tmp_path, content, name)


def test_a_file_without_an_extension_is_text(tmp_path: Path) -> None:
    assert read_text(tmp_path, "Words.", "LICENSE").rows[0].kind == "text"


def test_gzipped_documents_and_the_size_cap(tmp_path: Path) -> None:
    result = read_text(tmp_path, gzip.compress(b"# Rails\n"), "a.md.gz")
    assert result.rows[0].text == "# Rails\n"
    with pytest.raises(InvalidInput, match=r"too_large \(the document is over 1,000 bytes\)"):
        read_text(tmp_path, b"x" * 1001, "a.md", limits=Limits(document=1000))


CYRILLIC = "Насос поднимает воду из цистерны и останавливается, когда воды больше нет. Очистите фильтр раз в месяц."
JAPANESE = "ルーターを床から一メートル以上離し、部屋の中央に置いてください。設定画面を開きます。"
CHINESE = "更换滤芯之前请先关闭进水阀，并打开水龙头放掉余压。指示灯用颜色表示滤芯的剩余寿命。"
POLISH = "Pompa podnosi wodę ze zbiornika i zatrzymuje się, gdy woda się skończy. Filtr należy czyścić co miesiąc."
CZECH = "Čerpadlo zvedá vodu z nádrže a zastaví se, když voda dojde. Filtr se čistí každý měsíc žlutým kartáčem."
FRENCH = "Le vélo aide le cycliste jusqu’à 25 km/h tant qu’il pédale, même à Noël."


def page(text: str, *, declared: str = "") -> str:
    meta = f'<meta http-equiv="Content-Type" content="text/html; charset={declared}">' if declared else ""
    return f"<html><head>{meta}<title>T</title></head><body><h1>T</h1><p>{text}</p></body></html>"


@pytest.mark.parametrize(
    ("text", "written", "declared"),
    [
        (CYRILLIC, "cp1251", "windows-1251"),
        (CYRILLIC, "cp1251", ""),
        (CYRILLIC, "koi8-r", "utf-8"),
        (CYRILLIC, "utf-8", "iso-8859-1"),
        (CYRILLIC, "utf-16-le", ""),
        (JAPANESE, "cp932", "Shift_JIS"),
        (JAPANESE, "euc_jp", ""),
        (JAPANESE, "iso2022_jp", ""),
        (CHINESE, "gb18030", "gb2312"),
        (CHINESE, "gb18030", "no-such-charset"),
        (FRENCH, "cp1252", "iso-8859-1"),
        (FRENCH, "cp1252", "utf-8"),
        (FRENCH, "cp1252", "hex"),
        (POLISH, "cp1250", ""),
        (CZECH, "cp1250", "iso-8859-99"),
    ],
)
def test_the_charset_of_a_page_is_declared_or_detected(text: str, written: str, declared: str) -> None:
    document = documents.read_document(page(text, declared=declared).encode(written), "a.html")
    assert document.text == f"# T\n\n{text}\n"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.html", page("The text was \ufffd\ufffd decoded wrongly before."), "replacement_characters"),
        ("a.md", "# Caf\ufffd", "replacement_characters"),
        ("a.py", "LOST = '\ufffd'", None),
        ("a.html", page("An entity &#xfffd; is one, too."), "replacement_characters"),
    ],
)
def test_a_text_with_lost_characters_is_a_bad_document(name: str, text: str, reason: str | None) -> None:
    if reason is None:
        assert documents.read_document(text.encode(), name).text == text
        return
    with pytest.raises(BadRow, match=r"\d of \d+ characters are lost \(U\+FFFD\); save the file again as UTF-8") as bad:
        documents.read_document(text.encode(), name)
    assert bad.value.reason == reason


def test_pages_whose_characters_are_lost_are_counted(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (folder / "lost.html").write_text(page("Caf\ufffd"))
    result = read_folder(folder)
    assert result.report["dropped"] == {"replacement_characters": 1}
    assert [entry["source"] for entry in result.quarantine] == ["lost.html:1"]


MENU = '<div class="menu"><h2>Contents</h2><ul><li><a href="a.html">Rails</a></li></ul></div>'


@pytest.mark.parametrize(
    ("body", "title"),
    [
        (f"{MENU}<h1>Rails<a class=headerlink href='#'>¶</a></h1>", "Rails"),
        (f"{MENU}<h2>Gauge</h2><p>Wide.</p>", "Rails - Handbook"),
        ("<h2>Contents</h2><p>One</p><h1>Wide rails</h1>", "Wide rails"),
        ("<header><h1>Handbook</h1></header><main><h1>Wide rails</h1></main>", "Wide rails"),
        ("<header><h1>Handbook</h1></header><p>Wide.</p>", "Rails - Handbook"),
        ("<div><h1>Contents</h1><p>One</p></div><h1>Rails</h1>", "Rails"),
        ('<div role="navigation"><h1>Rails</h1></div><h1>Iron</h1>', "Iron"),
    ],
)
def test_the_title_is_the_pages_and_not_its_menus(body: str, title: str) -> None:
    html = f"<html><head><title>Rails - Handbook</title></head><body>{body}<p>Text.</p></body></html>"
    assert documents.read_document(html.encode(), "a.html").title == title


def test_a_menu_is_left_out_and_a_body_with_a_sidebar_is_not() -> None:
    html = f"<body class='with-sidebar'><h1>Rails</h1>{MENU}<p>Iron bars that lie on ties.</p></body>"
    html += "<div class='sidebar'><p>A note that is no link.</p></div>"
    assert documents.read_document(html.encode(), "a.html").text == (
        "# Rails\n\nIron bars that lie on ties.\n\nA note that is no link.\n"
    )


def test_a_table_without_a_head_is_a_table_and_raised_numbers_stay_raised() -> None:
    html = "<p>A square<sup>1</sup> of 10 m<sup>2</sup>.</p><table><tr><td>Gauge</td><td>1435</td></tr></table>"
    assert documents.read_document(html.encode(), "a.html").text == (
        "A square¹ of 10 m².\n\n|  |  |\n| --- | --- |\n| Gauge | 1435 |\n"
    )


WORDS = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
BOX = f"""<w:r xmlns:w="{WORDS}" xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"
 xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape" xmlns:v="urn:schemas-microsoft-com:vml">
<mc:AlternateContent><mc:Choice Requires="wps"><w:drawing><wps:txbx><w:txbxContent><w:p><w:r><w:t>In a box.</w:t></w:r>
</w:p></w:txbxContent></wps:txbx></w:drawing></mc:Choice><mc:Fallback><w:pict><v:textbox><w:txbxContent><w:p><w:r>
<w:t>In a box.</w:t></w:r></w:p></w:txbxContent></v:textbox></w:pict></mc:Fallback></mc:AlternateContent></w:r>"""
CONTROL = (
    f"""<w:sdt xmlns:w="{WORDS}"><w:sdtContent><w:p><w:r><w:t>In a control.</w:t></w:r></w:p></w:sdtContent></w:sdt>"""
)
INLINE = f"""<w:sdt xmlns:w="{WORDS}"><w:sdtContent><w:r><w:t xml:space="preserve"> And inside.</w:t></w:r>
</w:sdtContent></w:sdt>"""
HINT = f"""<w:sdt xmlns:w="{WORDS}"><w:sdtPr><w:showingPlcHdr/></w:sdtPr><w:sdtContent><w:p><w:r><w:t>Click here.</w:t>
</w:r></w:p></w:sdtContent></w:sdt>"""
CHANGES = f"""<w:p xmlns:w="{WORDS}"><w:ins><w:r><w:t>Kept.</w:t></w:r></w:ins><w:del><w:r><w:delText>Gone.</w:delText>
</w:r></w:del><w:r><w:tab/><w:t>End</w:t><w:br/><w:t>of line.</w:t></w:r></w:p>"""


def word_with_boxes() -> bytes:
    document = docx.Document()
    document.add_heading("Rails", 1)
    paragraph = document.add_paragraph("Outside.")
    paragraph._p.append(parse_xml(BOX))
    paragraph._p.append(parse_xml(INLINE))
    for part in (CONTROL, HINT, CHANGES):
        document.element.body.insert(len(document.element.body) - 1, parse_xml(part))
    table = document.add_table(2, 3)
    table.cell(0, 0).merge(table.cell(0, 1)).text = "Wide"
    table.cell(0, 2).merge(table.cell(1, 2)).text = "Tall"
    table.cell(1, 0)._tc.append(parse_xml(CONTROL))
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def test_text_boxes_and_content_controls_of_a_docx_are_read_once() -> None:
    assert documents.read_document(word_with_boxes(), "a.docx").text == (
        "# Rails\n\nOutside. And inside.\n\nIn a box.\n\nIn a control.\n\nKept.\tEnd\nof line.\n\n"
        "| Wide | Wide | Tall |\n| --- | --- | --- |\n| In a control. |  | Tall |\n"
    )


def strict(data: bytes) -> bytes:
    """The same file in the Strict form of the standard."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as original, zipfile.ZipFile(stream, "w") as rewritten:
        for name in original.namelist():
            part = re.sub(
                rb"http://schemas\.openxmlformats\.org/(officeDocument|wordprocessingml|drawingml)/2006/",
                rb"http://purl.oclc.org/ooxml/\1/",
                original.read(name),
            )
            rewritten.writestr(name, part)
    return stream.getvalue()


def test_a_docx_in_the_strict_form_is_read_like_any_other() -> None:
    for data in (write_word(), word_with_boxes()):
        with pytest.raises(KeyError, match="no relationship"):
            docx.Document(io.BytesIO(strict(data)))
        plain, same = (documents.read_document(file_bytes, "a.docx") for file_bytes in (data, strict(data)))
        assert (same.title, same.text) == (plain.title, plain.text)
