#pragma once

// A function of a Python program, for LineProfiler.
//
//   memledger::LineProfilerOptions options;
//   options.python = true;
//   memledger::LineProfiler profiler({}, options);
//   memledger::PythonFunction function{"Net.forward", "forward", "net.py", 12, {}};
//   function.source = {"def forward(self, x):", "    return self.layer(x)"};
//   profiler.add_python_function(function);

#include <cstdint>
#include <string>
#include <vector>

namespace memledger {

struct PythonFunction {
  std::string name;                 // for the table: Net.forward
  std::string frame_name;           // what its frames are called: forward
  std::string file;                 // its code object's co_filename, also <ipython-input-1-…>
  int64_t first_line = 1;           // co_firstlineno, where the source below begins
  std::vector<std::string> source;  // its lines
};

}  // namespace memledger
