// Small readers, written from the formats' own rules and not from our writers.

#include <cctype>

#include "tests/fuzz/fuzz.h"

namespace memledger::fuzz {
namespace {

bool is_hex(char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; }
bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == ':';
}
bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// The code point that begins there, -1 where none does; moves behind it.
int32_t next_code(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at++);
  if (first < 0x80) return first;
  const int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
  if (first < 0xc2 || first > 0xf4) return -1;
  int32_t code = first & (0x3f >> more);
  for (int i = 0; i < more; ++i, ++at) {
    if (at >= text.size() || (byte(at) & 0xc0) != 0x80) return -1;
    code = code << 6 | (byte(at) & 0x3f);
  }
  const int32_t least[] = {0, 0x80, 0x800, 0x10000};
  return code < least[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? -1 : code;
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (next_code(text, at) < 0) return false;
  }
  return true;
}

class Json {
 public:
  explicit Json(std::string_view text) : text_(text) {}

  bool document() {
    const bool read = value(0);
    spaces();
    return read && at_ == text_.size();
  }

 private:
  static constexpr int kMostDepth = 100;

  void spaces() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }
  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  bool string() {
    if (!take("\"")) return false;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') return ++at_, true;
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c != '\\') continue;
      if (++at_ == text_.size()) return false;
      if (text_[at_] == 'u') {
        for (int i = 0; i < 4; ++i) {
          if (++at_ >= text_.size() || !is_hex(text_[at_])) return false;
        }
      } else if (std::string_view("\"\\/bfnrt").find(text_[at_]) == std::string_view::npos) {
        return false;
      }
    }
    return false;
  }
  bool digits() {
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    return at_ > begin;
  }
  bool number() {
    take("-");
    if (!take("0") && !digits()) return false;
    if (take(".") && !digits()) return false;
    if (take("e") || take("E")) {
      if (!take("+")) take("-");
      return digits();
    }
    return true;
  }
  bool list(char end, bool named, int depth) {
    ++at_;
    spaces();
    if (at_ < text_.size() && text_[at_] == end) return ++at_, true;
    for (;;) {
      if (named) {
        spaces();
        if (!string()) return false;
        spaces();
        if (!take(":")) return false;
      }
      if (!value(depth + 1)) return false;
      spaces();
      if (at_ < text_.size() && text_[at_] == end) return ++at_, true;
      if (!take(",")) return false;
    }
  }
  bool value(int depth) {
    spaces();
    if (at_ == text_.size() || depth > kMostDepth) return false;
    switch (text_[at_]) {
      case '{':
        return list('}', true, depth);
      case '[':
        return list(']', false, depth);
      case '"':
        return string();
      case 't':
        return take("true");
      case 'f':
        return take("false");
      case 'n':
        return take("null");
      default:
        return number();
    }
  }

  const std::string_view text_;
  size_t at_ = 0;
};

// The end of an entity that begins there, npos where none does.
size_t entity_end(std::string_view text, size_t at) {
  for (const std::string_view entity : {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"}) {
    if (text.substr(at, entity.size()) == entity) return at + entity.size();
  }
  return std::string_view::npos;
}

}  // namespace

bool is_plain_text(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const int32_t code = next_code(text, at);
    if (code < 0x20 ? code != '\n' : code >= 0x7f && code < 0xa0) return false;
    if ((code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069)) return false;
  }
  return true;
}

bool is_json(std::string_view text) { return is_utf8(text) && Json(text).document(); }

bool is_xml(std::string_view text) {
  std::vector<std::string> open;
  bool any = false;
  for (size_t check = 0; check < text.size();) {
    const int32_t code = next_code(text, check);
    if (code < 0 || (code < 0x20 && !is_space(static_cast<char>(code))) ||
        (code & 0xfffe) == 0xfffe)
      return false;
  }
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '&') {
      at = entity_end(text, at);
      if (at == std::string_view::npos || open.empty()) return false;
      continue;
    }
    if (text[at] != '<') {
      if (open.empty() && !is_space(text[at])) return false;
      ++at;
      continue;
    }
    const bool closes = text.substr(at, 2) == "</";
    at += closes ? 2 : 1;
    const size_t begin = at;
    while (at < text.size() && is_name(text[at])) ++at;
    const std::string name(text.substr(begin, at - begin));
    if (name.empty()) return false;
    if (closes) {
      if (open.empty() || open.back() != name || text.substr(at, 1) != ">") return false;
      open.pop_back();
      ++at;
      continue;
    }
    if (open.empty() && any) return false;
    any = true;
    for (;;) {
      while (at < text.size() && is_space(text[at])) ++at;
      if (text.substr(at, 2) == "/>") {
        at += 2;
        break;
      }
      if (text.substr(at, 1) == ">") {
        open.push_back(name);
        ++at;
        break;
      }
      const size_t attribute = at;
      while (at < text.size() && is_name(text[at])) ++at;
      if (at == attribute || text.substr(at, 2) != "=\"") return false;
      for (at += 2; at < text.size() && text[at] != '"';) {
        if (text[at] == '<') return false;
        at = text[at] == '&' ? entity_end(text, at) : at + 1;
      }
      if (at >= text.size()) return false;
      ++at;
    }
  }
  return any && open.empty();
}

std::vector<std::vector<std::string>> csv_records(std::string_view text) {
  std::vector<std::vector<std::string>> records;
  for (size_t at = 0; at < text.size();) {
    std::vector<std::string> fields(1);
    for (;; ++at) {
      if (at < text.size() && text[at] == '"' && fields.back().empty()) {
        for (++at;; ++at) {
          if (at >= text.size()) return {};
          if (text[at] != '"') {
            fields.back() += text[at];
          } else if (text.substr(at, 2) == "\"\"") {
            fields.back() += text[at++];
          } else {
            break;
          }
        }
        if (++at < text.size() && text[at] != ',' && text[at] != '\n') return {};
      }
      if (at >= text.size() || text[at] == '\n') break;
      if (text[at] == ',') {
        fields.emplace_back();
      } else {
        fields.back() += text[at];
      }
    }
    ++at;
    records.push_back(std::move(fields));
  }
  return records;
}

std::vector<std::string> html_tags(std::string_view text) {
  std::vector<std::string> tags;
  for (size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at)) {
    ++at;
    const size_t begin = at;
    if (at < text.size() && (text[at] == '/' || text[at] == '!')) ++at;
    while (at < text.size() && is_name(text[at])) ++at;
    std::string tag(text.substr(begin, at - begin));
    if (tag.empty()) continue;
    // Quoted attributes may hold a `>`.
    for (char quote = 0; at < text.size() && (quote != 0 || text[at] != '>'); ++at) {
      if (quote == 0 && text[at] == '"') {
        quote = '"';
      } else if (quote == text[at]) {
        quote = 0;
      }
    }
    if (tag == "script" || tag == "style") {
      // Browsers take `</script` in any case for its end.
      while (at < text.size()) {
        at = text.find("</", at);
        if (at == std::string_view::npos) return tags;
        std::string end(text.substr(at + 2, tag.size()));
        for (char& c : end) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        if (end == tag) break;
        at += 2;
      }
    }
    tags.push_back(std::move(tag));
  }
  return tags;
}

}  // namespace memledger::fuzz
