#!/usr/bin/env python3
"""The mechanical part of plain English: scripts/prose.py [--self-test]

Looks at the comments of the Rust sources and at the pages. Prints each problem as FILE:LINE, and
ends with 1 if there are any:
- a word alone on a line inside a paragraph, which a mechanical wrap left there;
- a line of a page over WIDTH characters, outside tables, links, listings and pages that programs
  write;
- a sentence that puts the point last, or an expression that has a plainer one (PATTERNS).
A reader has to judge the rest.
"""

import pathlib
import re
import sys

WIDTH = 120
# Programs write these pages and do not wrap them.
UNWRAPPED = ("docs/research/claims/", "docs/research/claims.md")
START = r"(?:^|(?<=[.;:!?] ))"
# A pattern, and what to write instead.
PATTERNS = [
    (START + r"Of (?:the|these|those|this|what|which|both|all|each)\b[^.]*", "put the subject first"),
    (START + r"(?:Was|Were|Is|Are|Did|Had|Should) [^.?]*,[^.?]*(?:\.|$)", "begin with 'if'"),
    (START + r"(?:Not|Limited|Published|Counted|Needed|Missing|Left) (?:is|are|was|were)\b", "put the subject first"),
    (START + r"To (?:the|a|an|this|these|those) [a-z]+ (?:belongs?|comes?|goes|is|are)\b", "put the subject first"),
    (r"\b(?:held against|comes? out as)\b", "compare, confirm"),
    (
        r"(?<![Tt]here )\b(?:is|are|was|were) no (?!longer|more|less|better|faster|such|different)[a-z]+",
        "is not a, does not",
    ),
    # A span of code is a row of x's here.
    (START + r"As \[?x{3,}\]?(?:[.,;]|$)", "write 'Like'"),
    (START + r"Times (?:that|the|an?|it)\b", "write 'Number of', or 'Timestamps'"),
    (r"\b(?:has|have|had) still to\b", "still has to"),
    (r"\bdamage (?:is |was )?met\b|\b(?:met|meets?) (?:damage|a damaged)\b", "find damage"),
    (r"\bwhat (?:is|was|are|were) (?:told|led|said|had|given|gone|there)\b", "name the thing"),
    (r"\bthat of (?:which|whom)\b", "name the thing"),
    (r"\b[Ww]hoever\b", "name the process, the user or the task"),
]
PATTERNS = [(re.compile(pattern), advice) for pattern, advice in PATTERNS]


def paragraphs_of_rust(text):
    """Paragraphs of comments: lists of (line number, words without the slashes)."""
    paragraph, kind, listing = [], None, False
    for number, line in enumerate(text.split("\n"), 1):
        found = re.match(r"\s*(//[/!]?)(?: (.*))?$", line)
        content = found.group(2) if found else None
        if content and content.startswith("```"):
            listing = not listing
        if listing:
            content = None
        if not content or (kind and found.group(1) != kind) or re.match(r"(?:[-*#|>`]|\d+\.) ?", content):
            if paragraph:
                yield paragraph
            paragraph = []
        if content:
            kind = found.group(1)
            paragraph.append((number, content.strip()))
        else:
            kind = None
    if paragraph:
        yield paragraph


def paragraphs_of_page(text):
    """Paragraphs of a page, without listings and tables."""
    paragraph, listing = [], False
    for number, line in enumerate(text.split("\n"), 1):
        fence = line.lstrip().startswith("```")
        skip = listing or fence or not line.strip() or line.lstrip()[0] in "|#<" or line.startswith("    ")
        starts = re.match(r"\s*(?:[-*>]|\d+\.) ", line)
        if (skip or starts) and paragraph:
            yield paragraph
            paragraph = []
        if fence:
            listing = not listing
        if not skip:
            paragraph.append((number, line.strip()))
    if paragraph:
        yield paragraph


def problems(name, text):
    page = name.endswith(".md")
    for paragraph in (paragraphs_of_page if page else paragraphs_of_rust)(text):
        for number, line in paragraph[1:-1]:
            if " " not in line and not line.endswith("`"):
                yield number, f"a word alone on its line: {line}"
        for number, line in paragraph:
            if page and not name.startswith(UNWRAPPED) and len(line) > WIDTH and "](" not in line and "`" not in line:
                yield number, f"{len(line)} characters: at most {WIDTH}"
        whole, starts = "", []
        for number, line in paragraph:
            starts.append((len(whole), number))
            whole += re.sub(r"`[^`]*`", lambda code: "x" * len(code.group()), line) + " "
        for pattern, advice in PATTERNS:
            for found in pattern.finditer(whole.rstrip()):
                number = [number for start, number in starts if start <= found.start()][-1]
                yield number, f"{advice}: {found.group()[:60]}"


def files():
    for folder, suffixes in ((".", {".md"}), ("docs", {".md"}), ("crates", {".rs"}), ("plugins", {".md"})):
        found = pathlib.Path(folder).glob("*") if folder == "." else pathlib.Path(folder).rglob("*")
        yield from sorted(path for path in found if path.suffix in suffixes and path.is_file())


def self_test():
    """Each rule refuses a sample, and plain text passes."""
    bad = {
        "//! Reads the table of\n//! below,\n//! and writes it.\n": 1,
        "// Of these two the kernel takes no reference.\n": 1,
        "/// Was it tried with something else, say so.\n": 1,
        "// It works. Limited is the number of files.\n": 1,
        "// A directory that is no file system.\n": 1,
        "// These are no errors.\n": 1,
        "/// As [`Fs::open`], with a limit.\n": 1,
        "/// Times the ring turned.\n": 1,
        "// The drive has still to answer.\n": 1,
        "// A scrub that met damage says so.\n": 1,
        "/// Checks a zone. Then it writes it, and returns.\n": 0,
        "/// Is it open?\n": 0,
        "/// ```\n/// a(\n/// b\n/// c)\n/// ```\n": 0,
        "/// Fails if there is no file. There are no drives left; it is no longer open.\n": 0,
        "/// Times are in seconds. As `sync` promises, all is durable.\n": 0,
        "// Of course it works; some of these are open.\n": 0,
    }
    for text, count in bad.items():
        found = list(problems("a.rs", text))
        assert len(found) == count, (text, found)
    assert len(list(problems("a.md", "word " * 30 + "\n"))) == 1
    assert not list(problems("a.md", "| " + "word " * 30 + "|\n"))


def main():
    self_test()
    count = 0
    for path in files():
        for number, problem in problems(str(path), path.read_text()):
            print(f"{path}:{number}: {problem}")
            count += 1
    if count:
        sys.exit(f"prose: {count} problems")


main()
