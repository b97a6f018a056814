# A smoke set: what a build by CMake can break. Bazel runs the rest.
add_executable(memledger_ten_lines tests/consumer/ten_lines.cc)
target_link_libraries(memledger_ten_lines PRIVATE memledger::memledger)
add_test(NAME ten_lines COMMAND memledger_ten_lines)
set_tests_properties(ten_lines PROPERTIES PASS_REGULAR_EXPRESSION "[(]0.00B unexplained[)]")

find_path(MEMLEDGER_DOCTEST_INCLUDE NAMES doctest.h PATH_SUFFIXES doctest)
if(MEMLEDGER_DOCTEST_INCLUDE)
  add_executable(memledger_autostart_test tests/consumer/autostart_test.cc)
  target_include_directories(memledger_autostart_test PRIVATE "${PROJECT_SOURCE_DIR}" "${MEMLEDGER_DOCTEST_INCLUDE}" "${MEMLEDGER_DOCTEST_INCLUDE}/..")
  target_link_libraries(memledger_autostart_test PRIVATE memledger::autostart)
  add_test(NAME autostart COMMAND memledger_autostart_test)
endif()

if(MEMLEDGER_BUILD_COMMAND)
  add_test(NAME version COMMAND memledger_command --version)
  set_tests_properties(version PROPERTIES PASS_REGULAR_EXPRESSION "LibTorch ${MEMLEDGER_LIBTORCH_SHORT}")
endif()
