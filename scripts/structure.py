#!/usr/bin/env python3
"""Counts what the structure of a crate costs a reader: scripts/structure.py CRATE... [--json]

    lines         of product code: files of src/ outside `#[cfg(test)]`, comments included
    code          of these, lines that are neither blank nor comment
    assertions    assert!, debug_assert! and their kin, and calls of ensure-like helpers
    invariants    expect("invariant: ...")
    circle        the largest set of files that all import each other, directly or through others
    pairs         (file, field) that a file can touch: see below
    function      the longest function, in lines

A file imports another if it names a path into it (`crate::x::Y`, `super::x`, a child module's
`x::Y`), in a `use` or in place. `mod x;` is no import. A path to something that the crate's root
exports again counts as an import of the root.

A file can touch the fields of a state struct if it names the struct, or a struct whose visible
field holds it, as far as the fields are visible to the file. For fs the state is `Core` and its
parts, for raid and kv `Inner` and its handle; --state A,B names others.

--max-circle N fails if a circle has more files than N. --files lists the circle and the files of
each struct.
"""
import argparse
import json
import os
import re
import sys

STATE = {
    # Not `Env`, which `Core` holds too: nothing in it changes.
    "fs": [
        "Core",
        "alloc::Allocator",
        "tables::Tables",
        "tree::Tree",
        "durability::Durability",
        "durability::SyncLog",
        "health::Health",
        "stats::Stats",
    ],
    "array": ["service::Array", "member::Member", "drive::Drive"],
    "raid": ["Volume", "Inner", "segment::Table", "paging::Paging", "checkpoint::State"],
    "kv": ["Store", "Inner"],
}
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def blank(text):
    """Comments and the content of literals as spaces, so that offsets and lines stay."""
    out, i, n = [], 0, len(text)
    token = re.compile(
        r'//[^\n]*|/\*|b?r(#*)"|b?"(?:\\.|[^"\\])*"|b?\'(?:\\(?:x..|u\{[^}]*\}|.)|[^\\\'\n])\'',
        re.S,
    )
    while i < n:
        found = token.search(text, i)
        if not found:
            out.append(text[i:])
            break
        start, end, what = found.start(), found.end(), found.group()
        # An identifier that ends in r or b is not a prefix of a literal.
        word = start > 0 and (text[start - 1].isalnum() or text[start - 1] == "_")
        if word and what[0] in "br":
            out.append(text[i : start + 1])
            i = start + 1
            continue
        out.append(text[i:start])
        if what == "/*":
            depth, end = 1, start + 2
            while depth and end < n:
                if text.startswith("/*", end):
                    depth, end = depth + 1, end + 2
                elif text.startswith("*/", end):
                    depth, end = depth - 1, end + 2
                else:
                    end += 1
        elif re.fullmatch(r'b?r#*"', what):
            close = text.find('"' + found.group(1), end)
            end = n if close < 0 else close + 1 + len(found.group(1))
        out.append(re.sub(r"[^\n]", " ", text[start:end]))
        i = end
    return "".join(out)


def closing(code, at, pair="{}"):
    """Offset behind the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(code)):
        if code[i] == pair[0]:
            depth += 1
        elif code[i] == pair[1]:
            depth -= 1
            if depth == 0:
                return i + 1
    return len(code)


def item_end(code, at):
    """Offset behind the item that begins at `at`: its attributes, head, and body or semicolon."""
    depth = 0
    i = at
    while i < len(code):
        c = code[i]
        if c in "([":
            depth += 1
        elif c in ")]":
            depth -= 1
        elif c == "{" and depth == 0:
            return closing(code, i)
        elif c == "{":
            i = closing(code, i) - 1
        elif c in ";," and depth == 0:
            return i + 1
        elif c == "}" and depth == 0:
            return i
        i += 1
    return i


TEST = re.compile(r"#\s*\[\s*cfg\s*\(\s*(?:test|all\s*\(\s*test\b[^\]]*)\)\s*\]|#\s*\[\s*test\s*\]")


def without_tests(code):
    """The code with its test items as spaces, and the names of test modules of their own file."""
    modules = set()
    while found := TEST.search(code):
        end = item_end(code, found.end())
        item = code[found.end() : end]
        declared = re.search(r"\bmod\s+(\w+)\s*;", item)
        if declared:
            modules.add(declared.group(1))
        code = code[: found.start()] + re.sub(r"[^\n]", " ", code[found.start() : end]) + code[end:]
    return code, modules


class File:
    def __init__(self, path, module, text):
        self.path, self.module, self.text = path, module, text
        self.code, self.test_modules = without_tests(blank(text))
        self.children = set(re.findall(r"\bmod\s+(\w+)\s*;", self.code))


def files_of(crate):
    source = os.path.join(ROOT, "crates", crate, "src")
    found = {}
    for folder, _, names in os.walk(source):
        for name in names:
            if not name.endswith(".rs"):
                continue
            path = os.path.relpath(os.path.join(folder, name), source)
            module = tuple(path[:-3].split(os.sep))
            if module[-1] in ("lib", "main", "mod"):
                module = module[:-1]
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                found[module] = File(path, module, file.read())
    tests = {f.module + (m,) for f in found.values() for m in f.test_modules}
    is_test = lambda module: any(module[: len(t)] == t for t in tests)
    return {module: file for module, file in sorted(found.items()) if not is_test(module)}


def paths_in(tree, prefix=()):
    """Paths of a use tree, groups written out."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(tree + ","):
        depth += (c == "{") - (c == "}")
        if c == "," and depth == 0:
            parts.append(tree[start:i].strip())
            start = i + 1
    for part in filter(None, parts):
        group = re.match(r"((?:\w+\s*::\s*)*)\{(.*)\}\s*$", part, re.S)
        if group:
            head = tuple(re.findall(r"\w+", group.group(1)))
            yield from paths_in(group.group(2), prefix + head)
        else:
            yield prefix + tuple(re.findall(r"\w+|\*", part.split(" as ")[0]))


def imports(file, modules):
    """Modules that `file` names a path into."""
    code, found = file.code, set()
    uses = [m for m in re.finditer(r"\buse\s+([^;]+);", code)]
    paths = [path for use in uses for path in paths_in(use.group(1))]
    rest = re.sub(r"\buse\s+[^;]+;", " ", code)
    for path in re.findall(r"\b(?:crate|super|self)(?:\s*::\s*\w+)+", rest):
        paths.append(tuple(re.findall(r"\w+", path)))
    for child in file.children:
        if re.search(r"(?<![:\w])%s\s*::" % child, rest):
            paths.append((child,))
    for path in paths:
        if not path:
            continue
        if path[0] == "crate":
            at, path = (), path[1:]
        elif path[0] in ("super", "self"):
            at = file.module
            while path and path[0] in ("super", "self"):
                at, path = (at[:-1] if path[0] == "super" else at), path[1:]
        elif path[0] in file.children:
            at = file.module
        else:
            continue
        while path and at + (path[0],) in modules:
            at, path = at + (path[0],), path[1:]
        if at in modules and at != file.module:
            found.add(at)
    return found


def circles(graph):
    """Strongly connected components of more than one node, the largest first."""
    index, low, stack, on, out = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on.add(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            part = []
            while True:
                other = stack.pop()
                on.discard(other)
                part.append(other)
                if other == node:
                    break
            if len(part) > 1:
                out.append(sorted(part))

    sys.setrecursionlimit(10_000)
    for node in graph:
        if node not in index:
            visit(node)
    return sorted(out, key=len, reverse=True)


def structs(files, names):
    """Name -> (module, [(field, visibility, type)]) of structs with named fields."""
    found = {}
    # A name may be given with a module that contains it.
    below = {name.split("::")[-1]: tuple(name.split("::")[:-1]) for name in names}
    for module, file in files.items():
        names = [name for name, top in below.items() if module[: len(top)] == top]
        for m in re.finditer(r"\bstruct\s+(\w+)\b[^;({]*\{", file.code):
            if m.group(1) not in names or m.group(1) in found:
                continue
            body = file.code[m.end() : closing(file.code, m.end() - 1) - 1]
            body = re.sub(r"#\[[^\]]*\]", " ", body)
            fields, depth, start = [], 0, 0
            for i, c in enumerate(body + ","):
                depth += (c in "<([{") - (c in ")]}") - (c == ">" and body[i - 1 : i] != "-")
                if c == "," and depth == 0:
                    field = body[start:i].strip()
                    start = i + 1
                    head = re.match(r"(pub\s*(?:\(([^)]*)\))?\s*)?(\w+)\s*:\s*(.*)", field, re.S)
                    if head:
                        fields.append((head.group(3), visible_in(head, module), head.group(4)))
            found[m.group(1)] = (module, fields)
        for m in re.finditer(r"\bstruct\s+(\w+)\s*(?:<[^>]*>)?\s*\(([^;]*)\)\s*;", file.code):
            head = re.match(r"(pub\s*(?:\(([^)]*)\))?\s*)?()(.*)", m.group(2).strip(), re.S)
            if m.group(1) in names and m.group(1) not in found:
                # The one field of a handle is not a state.
                found[m.group(1)] = (module, [("", visible_in(head, module), head.group(4))])
    return found


def visible_in(head, module):
    """The module within which a field is visible."""
    where = (head.group(2) or "").strip()
    if not head.group(1):
        return module
    if where in ("", "crate"):
        return ()
    if where == "self":
        return module
    if where == "super":
        return module[:-1]
    return tuple(p for p in re.findall(r"\w+", where) if p not in ("in", "crate"))


def pairs_of(files, names):
    """(file, struct, field) that files can touch, and for each struct the files that name it."""
    known = structs(files, names)
    pairs, named = set(), {name: [] for name in known}
    # Not a variant of an enum of that name.
    word = {name: re.compile(r"(?:^|[^:\w]|\b[a-z_]\w*::)%s\b" % name, re.M) for name in known}
    other = {name: re.compile(r"\b(?:struct|enum)\s+%s\b" % name) for name in known}
    for module, file in files.items():
        mine = lambda name: known[name][0] == module or not other[name].search(file.code)
        todo = [name for name in known if mine(name) and word[name].search(file.code)]
        for name in todo:
            named[name].append(file.path)
        seen = set()
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            for field, within, kind in known[name][1]:
                if module[: len(within)] != within:
                    continue
                if field:
                    pairs.add((file.path, name, field))
                todo.extend(other for other in known if word[other].search(kind))
    sizes = {name: len(fields) for name, (_, fields) in known.items()}
    return pairs, named, sizes


def largest_function(files):
    largest = (0, "", "")
    for file in files.values():
        for m in re.finditer(r"\bfn\s+(\w+)", file.code):
            semicolon, brace = file.code.find(";", m.end()), file.code.find("{", m.end())
            if brace < 0 or 0 <= semicolon < brace and "[" not in file.code[m.end() : semicolon]:
                continue
            lines = file.code.count("\n", m.start(), closing(file.code, brace)) + 1
            largest = max(largest, (lines, m.group(1), file.path))
    return largest


def measure(crate, state):
    files = files_of(crate)
    every = "\n".join(file.code for file in files.values())
    graph = {module: imports(file, files) for module, file in files.items()}
    rounds = circles(graph)
    pairs, named, sizes = pairs_of(files, state)
    lines = 0
    for file in files.values():
        # A test module at the end of a file is blank in `code` and not in `text`.
        bare = blank(file.text).split("\n")
        for whole, part, kept in zip(file.text.split("\n"), bare, file.code.split("\n")):
            lines += bool(whole.strip()) and part.strip() == kept.strip()
    text = "".join(file.text for file in files.values())
    lines, name, path = lines, *largest_function(files)[1:]
    return {
        "crate": crate,
        "files": len(files),
        "lines": lines,
        "code": sum(1 for line in every.split("\n") if line.strip()),
        "assertions": len(re.findall(r"\b(?:debug_)?assert(?:_eq|_ne)?!|\bensure\w*!?\s*\(", every)),
        "invariants": len(re.findall(r'expect\("invariant', text)),
        "imports": sum(len(to) for to in graph.values()),
        "circles": [[files[module].path for module in part] for part in rounds],
        "circle": max(map(len, rounds), default=0),
        "pairs": len(pairs),
        "fields": {name: size for name, size in sizes.items()},
        "named_by": named,
        "function": {"lines": largest_function(files)[0], "name": name, "file": path},
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("crate", nargs="+")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--state")
    parser.add_argument("--max-circle", type=int)
    options = parser.parse_args()
    wrong = False
    measured = []
    for crate in options.crate:
        state = options.state.split(",") if options.state else STATE.get(crate, [])
        measured.append(measure(crate, state))
    if options.json:
        print(json.dumps(measured, indent=1))
    for one in measured:
        if not options.json:
            print(
                f"{one['crate']}: {one['files']} files, {one['lines']} lines ({one['code']} code), "
                f"{one['assertions']} assertions, {one['invariants']} invariants"
            )
            print(f"  circles {[len(c) for c in one['circles']]} of {one['imports']} imports")
            counts = {name: len(by) for name, by in one["named_by"].items()}
            print(f"  {one['pairs']} (file, field) pairs; fields {one['fields']}, files {counts}")
            longest = one["function"]
            print(f"  longest function {longest['name']} in {longest['file']}: {longest['lines']}")
        if options.files:
            for part in one["circles"]:
                print("  circle:", " ".join(part), file=sys.stderr)
            for name, by in one["named_by"].items():
                print(f"  {name}:", " ".join(by), file=sys.stderr)
        if options.max_circle is not None and one["circle"] > options.max_circle:
            part = " ".join(one["circles"][0])
            print(
                f"crates/{one['crate']}: {one['circle']} files import each other, at most "
                f"{options.max_circle}: {part}",
                file=sys.stderr,
            )
            wrong = True
    sys.exit(wrong)


if __name__ == "__main__":
    main()
