#pragma once

#include <string>
#include <string_view>

namespace memledger {

// Returns a text printable (text/names.h) and escaped for HTML, XML and SVG, attributes included.
std::string html_text(std::string_view text);

// Returns JSON for a script element: no text in it can end that element or begin a comment there.
std::string json_for_script(std::string_view json);

}  // namespace memledger
