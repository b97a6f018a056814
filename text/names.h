#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Names that a user, a program or a file chose, made harmless where they are shown. JSON keeps them
// exact (text/json.h).
namespace memledger {

// Returns `text` as one line that no terminal obeys: line breaks, control characters and escape
// sequences (C0, DEL, C1), marks that turn the direction of writing, and bytes that are no UTF-8
// become \n, \x1b, \u202e.
std::string printable(std::string_view text);

// Printable, and short enough for a table: of more than `most` characters the middle is left out,
// with … in its place.
std::string table_name(std::string_view text, size_t most = 200);

// Printable, and escaped for a quoted string of Graphviz.
std::string dot_text(std::string_view text);

// Returns what follows the last `/` of a path.
std::string_view base_name(std::string_view path);

}  // namespace memledger
