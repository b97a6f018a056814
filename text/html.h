#pragma once

#include <string>
#include <string_view>

namespace memledger {

// Returns a text printable (text/names.h) and escaped for HTML, XML and SVG, attributes included.
std::string html_text(std::string_view text);

// Returns JSON such that no text in it can end the script element that it stands in, or begin a
// comment there.
std::string json_for_script(std::string_view json);

}  // namespace memledger
