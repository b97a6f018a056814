#include "text/html.h"

#include "text/escaped.h"
#include "text/names.h"

namespace memledger {

std::string html_text(std::string_view text) {
  return escaped(printable(text), [](char c) -> std::string_view {
    switch (c) {
      case '&':
        return "&amp;";
      case '<':
        return "&lt;";
      case '>':
        return "&gt;";
      case '"':
        return "&quot;";
      case '\'':
        return "&#39;";
      default:
        return "";
    }
  });
}

std::string json_for_script(std::string_view json) {
  return escaped(json, [](char c) -> std::string_view { return c == '<' ? "\\u003c" : ""; });
}

}  // namespace memledger
