#pragma once

// Where in the program a call stands, found without a macro.
//
//   void track(memledger::SourceLocation where = memledger::SourceLocation::current());
//   track();                    // where.line() is the line of this call
//
// A C++17 stand-in for std::source_location. Needs GCC 9, or Clang 9, or later. The strings are the
// compiler's own and live as long as the program; a location made inside a shared library that is
// closed must not be read afterwards.

namespace memledger {

class SourceLocation {
 public:
  // To be called without arguments, as a default argument or on its own.
  static constexpr SourceLocation current(const char* file = __builtin_FILE(),
                                          const char* function = __builtin_FUNCTION(),
                                          int line = __builtin_LINE()) noexcept {
    return SourceLocation(file, function, line);
  }

  // Nowhere: empty strings, line 0.
  constexpr SourceLocation() noexcept = default;

  constexpr const char* file() const noexcept {
    return file_;
  }  // as given to the compiler, with its folders
  constexpr const char* function() const noexcept {
    return function_;
  }  // its bare name; a lambda's is operator()
  constexpr int line() const noexcept { return line_; }

 private:
  constexpr SourceLocation(const char* file, const char* function, int line) noexcept
      : file_(file), function_(function), line_(line) {}

  const char* file_ = "";
  const char* function_ = "";
  int line_ = 0;
};

}  // namespace memledger
