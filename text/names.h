#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Makes names that a user, a program or a file chose harmless where they are shown. JSON keeps them
// exact (text/json.h).
namespace memledger {

// Returns `text` as one line that no terminal obeys. Escaped are line breaks, control characters
// and escape sequences (C0, DEL, C1), marks that change the direction of writing, and bytes that
// are not UTF-8: \n, \x1b, \u202e, \xe9.
std::string printable(std::string_view text);

// Returns `text` printable and short enough for a table: beyond `most` characters, … replaces the
// middle.
std::string table_name(std::string_view text, size_t most = 200);

// Returns how many characters of UTF-8 `text` has.
size_t count_characters(std::string_view text);

// Returns `text` printable and escaped for a quoted string of Graphviz.
std::string dot_text(std::string_view text);

// Returns what follows the last `/` of a path.
std::string_view base_name(std::string_view path);

// Returns the ending of a path's file name in lower case, with its dot: `.json` of `out/r.JSON`.
// Empty where the name has none.
std::string file_ending(std::string_view path);

}  // namespace memledger
