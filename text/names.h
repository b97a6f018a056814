#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Names that a user, a program or a file chose, made harmless where they are shown. JSON keeps them
// exact: text/json_string.h.
namespace memledger {

// Returns `text` as one line that no terminal obeys: line breaks, control characters and escape
// sequences (C0, DEL, C1), marks that turn the direction of writing, and bytes that are no UTF-8
// become \n, \x1b, \u202e.
std::string printable(std::string_view text);

// Printable, and short enough for a table: of more than `most` characters the middle is left out,
// with … in its place.
std::string table_name(std::string_view text, size_t most = 200);

// A text as a field of CSV: printable, quoted where it has to be, and with an apostrophe before
// what a spreadsheet would take for a formula. Numbers are written as they are, not by this.
std::string csv_field(std::string_view text);

// Printable, and escaped for HTML, XML and SVG, attributes included.
std::string html_text(std::string_view text);

// Returns JSON such that no text in it can end the script element that it stands in, or begin a
// comment there.
std::string json_for_script(std::string_view json);

// Printable, and escaped for a quoted string of Graphviz.
std::string dot_text(std::string_view text);

}  // namespace memledger
