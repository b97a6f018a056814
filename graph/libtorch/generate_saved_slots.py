#!/usr/bin/env python3
"""Writes the visitor of saved slots from LibTorch's generated Functions.h.

usage: generate_saved_slots.py FUNCTIONS_H OUTPUT_CC

Reads every node class of torch::autograd::generated, finds its SavedVariable
and std::vector<SavedVariable> fields, and writes one function per class that
shows them to a memledger::graph_internal::SavedSlotVisitor. Anything it does
not understand is an error: a missing slot would make figures wrong.
"""

import re
import sys

HEADER = "torch/csrc/autograd/generated/Functions.h"

CLASS = re.compile(
    r"\b(?:struct|class)\s+(?:[A-Z][A-Z0-9_]*\s+)?([A-Za-z_]\w*)\s*(?:final\s*)?:"
    r"\s*(?:public\s+)?((?:\w+::)*(?:Node|TraceableFunction))\s*\{")
FIELD = re.compile(r"^(?P<type>.+?[\s>])(?P<name>[A-Za-z_]\w*)\s*(?:=.*|\{\s*\})?$",
                   re.S)
ONE = re.compile(r"^(?:torch::autograd::)?SavedVariable$")
LIST = re.compile(r"^(?:std::)?vector<(?:torch::autograd::)?SavedVariable>$")
SUSPECT = re.compile(r"Tensor\b|Variable\b|IValue\b|\bNode\b|Storage\b|\bany\b")


class Trouble(Exception):
    pass


def strip_comments_and_strings(text):
    """Blanks comments and the contents of string literals, keeping lines."""
    pattern = re.compile(
        r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'", re.S)

    def blank(match):
        text = match.group(0)
        if text.startswith("//") or text.startswith("/*"):
            return "\n" * text.count("\n") + " "
        return text[0] + text[-1]

    return pattern.sub(blank, text)


def condition_holds(directive, line_number):
    """Returns whether a condition holds if none of its macros is defined."""
    match = re.match(r"#\s*ifdef\s+\w+\s*$", directive)
    if match:
        return False
    if re.match(r"#\s*ifndef\s+\w+\s*$", directive):
        return True
    match = re.match(r"#\s*if\s+(.*)$", directive)
    if match:
        expression = re.sub(r"defined\s*\(?\s*\w+\s*\)?", "0", match.group(1))
        expression = expression.replace("&&", " and ").replace("||", " or ")
        expression = re.sub(r"!(?!=)", " not ", expression)
        if re.fullmatch(r"(?:\s|0|1|and|or|not|\(|\))+", expression):
            return bool(eval(expression.strip()))  # only the words above
    raise Trouble(f"line {line_number}: cannot decide '{directive}'")


def preprocess(text):
    """Returns the branches that a compiler sees where no macro is defined."""
    kept = []
    stack = []  # (this branch is kept, some branch was kept, parent is kept)
    for number, line in enumerate(text.split("\n"), 1):
        directive = line.strip()
        if directive.startswith("#"):
            word = directive[1:].split()[0] if directive[1:].split() else ""
            if word in ("if", "ifdef", "ifndef"):
                parent = all(entry[0] for entry in stack)
                value = condition_holds(directive, number)
                stack.append((value, value, parent))
            elif word == "elif":
                if not stack:
                    raise Trouble(f"line {number}: #elif without #if")
                _, taken, parent = stack.pop()
                value = not taken and condition_holds(
                    "#if " + directive.split("elif", 1)[1], number)
                stack.append((value, taken or value, parent))
            elif word == "else":
                if not stack:
                    raise Trouble(f"line {number}: #else without #if")
                _, taken, parent = stack.pop()
                stack.append((not taken, True, parent))
            elif word == "endif":
                if not stack:
                    raise Trouble(f"line {number}: #endif without #if")
                stack.pop()
            kept.append("")
        elif all(entry[0] for entry in stack):
            kept.append(line)
        else:
            kept.append("")
    if stack:
        raise Trouble("an #if is never closed")
    return "\n".join(kept)


def body_of(text, start, name):
    """Returns the text between the opening brace at start and its partner."""
    depth = 0
    for position in range(start, len(text)):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return text[start + 1:position]
    raise Trouble(f"{name}: its closing brace is missing")


def declarations_of(body):
    """Yields the declarations of a class body, without function bodies."""
    depth = 0
    current = []
    for character in body:
        if character == "{":
            depth += 1
            if depth == 1 and "(" in "".join(current):
                current.append(" FUNCTION_BODY ")
        elif character == "}":
            depth -= 1
            if depth == 0 and "(" in "".join(current):
                current = []
        elif depth == 0:
            if character == ";":
                yield "".join(current).strip()
                current = []
            else:
                current.append(character)
    rest = "".join(current).strip()
    if rest:
        yield rest


def fields_of(name, body):
    """Returns ([single slots], [list slots], {all field names})."""
    ones, lists, all_names = [], [], set()
    for declaration in declarations_of(body):
        declaration = re.sub(r"^(?:public|private|protected)\s*:\s*", "",
                             declaration).strip()
        if not declaration or declaration.startswith(("using ", "friend ",
                                                      "static ", "typedef ")):
            continue
        if "(" in declaration.split("=", 1)[0]:
            if "SavedVariable" in declaration.split("(", 1)[0]:
                raise Trouble(f"{name}: cannot read '{declaration}'")
            continue
        match = FIELD.match(declaration)
        if not match:
            raise Trouble(f"{name}: cannot read '{declaration}'")
        kind = re.sub(r"\s+", "", match.group("type"))
        field = match.group("name")
        all_names.add(field)
        if ONE.match(kind):
            ones.append(field)
        elif LIST.match(kind):
            lists.append(field)
        elif SUSPECT.search(kind):
            raise Trouble(
                f"{name}: field '{field}' of type '{kind}' may hold a tensor, "
                "and how to read it is not known")
    return ones, lists, all_names


def parse(text):
    """Returns [(class, [single], [list], {all fields})] in file order."""
    text = preprocess(strip_comments_and_strings(text))
    classes = []
    seen = set()
    for match in CLASS.finditer(text):
        name = match.group(1)
        if name in seen:
            raise Trouble(f"{name}: defined twice")
        seen.add(name)
        body = body_of(text, match.end() - 1, name)
        classes.append((name,) + fields_of(name, body))
    if not classes:
        raise Trouble("no node class found: is this LibTorch's " + HEADER + "?")
    slots = sum(len(ones) + len(lists) for _, ones, lists, _ in classes)
    if not slots:
        raise Trouble("node classes, but not one saved variable, found")
    # Counts again, independently of how classes are written.
    declared = len(re.findall(
        r"\bSavedVariable\s*>?\s+\w+\s*(?:=[^;()]*|\{\s*\})?;", text))
    if declared != slots:
        raise Trouble(f"the file declares {declared} saved variables, "
                      f"but {slots} were found in classes")
    return classes


def slot_name(field):
    return field[:-1] if field.endswith("_") else field


def write(classes):
    lines = [
        "// Generated by graph/libtorch/generate_saved_slots.py. Do not edit.",
        "",
        "#include <cstddef>",
        "#include <typeinfo>",
        "",
        '#include "graph/libtorch/saved_slots.h"',
        "#include <" + HEADER + ">",
        "",
        "namespace memledger::graph_internal {",
        "namespace {",
        "",
        "namespace generated = torch::autograd::generated;",
        "using torch::autograd::Node;",
        "",
    ]
    for name, ones, lists, names in classes:
        if not ones and not lists:
            continue
        lines.append(f"void visit_{name}(const Node& node, "
                     "SavedSlotVisitor& visitor) {")
        lines.append("  const auto& typed = "
                     f"static_cast<const generated::{name}&>(node);")
        for field in ones:
            lines.append(f'  visitor.one("{slot_name(field)}", typed.{field});')
        for field in lists:
            flag = slot_name(field) + "_released_"
            released = f"typed.{flag}" if flag in names else "false"
            lines.append(f'  visitor.list("{slot_name(field)}", typed.{field}, '
                         f"{released});")
        lines.append("}")
        lines.append("")
    lines.append("const SavedSlotType kTypes[] = {")
    for name, ones, lists, _ in classes:
        function = f"visit_{name}" if ones or lists else "visit_nothing"
        lines.append(f"    {{&typeid(generated::{name}), &{function}}},")
    lines += [
        "};",
        "",
        "}  // namespace",
        "",
        "const SavedSlotType* saved_slot_types() { return kTypes; }",
        "",
        f"size_t saved_slot_type_count() {{ return {len(classes)}; }}",
        "",
        "}  // namespace memledger::graph_internal",
        "",
    ]
    return "\n".join(lines)


def main(arguments):
    if len(arguments) != 3:
        sys.stderr.write(__doc__)
        return 2
    source, destination = arguments[1:]
    try:
        with open(source, encoding="utf-8") as stream:
            classes = parse(stream.read())
    except (OSError, Trouble) as trouble:
        sys.stderr.write(f"generate_saved_slots.py: {source}: {trouble}\n")
        return 1
    with open(destination, "w", encoding="utf-8") as stream:
        stream.write(write(classes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
