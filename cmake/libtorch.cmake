# Finds LibTorch without its own CMake package, which insists on a CUDA toolkit where LibTorch has
# CUDA. Here and in the package that is installed. Defines the target memledger_libtorch (headers,
# torch_cpu and c10), and
#
#   MEMLEDGER_LIBTORCH_ROOT     include/ and lib/ are in it
#   MEMLEDGER_LIBTORCH_VERSION  2.11.0
#   MEMLEDGER_LIBTORCH_ERROR    why there is none that can be used, and what to do; else empty
#
# Looks at: -DLIBTORCH= or the environment's LIBTORCH, find_package(Torch) if the project has called
# it, CMAKE_PREFIX_PATH (a wheel's torch/share/cmake, a zip's folder), what memledger was built with,
# and last at what `python3 -c 'import torch'` would load.

set(LIBTORCH "$ENV{LIBTORCH}" CACHE PATH "An unpacked LibTorch, or an installed torch package; empty: find_package(Torch)'s, CMAKE_PREFIX_PATH's, or python3's")

function(_memledger_libtorch_error sentence)
  set(MEMLEDGER_LIBTORCH_ERROR "${sentence}" CACHE INTERNAL "")
endfunction()

function(_memledger_is_libtorch folder result)
  if(EXISTS "${folder}/include/ATen/ATen.h" AND EXISTS "${folder}/lib/libtorch_cpu.so")
    set(${result} TRUE PARENT_SCOPE)
  else()
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

function(_memledger_find_libtorch result)
  set(candidates)
  if(LIBTORCH)
    list(APPEND candidates "${LIBTORCH}" "${LIBTORCH}/torch")
  elseif(TORCH_INSTALL_PREFIX)
    list(APPEND candidates "${TORCH_INSTALL_PREFIX}")
  else()
    set(prefixes ${CMAKE_PREFIX_PATH})
    if(DEFINED ENV{CMAKE_PREFIX_PATH})
      string(REPLACE ":" ";" from_environment "$ENV{CMAKE_PREFIX_PATH}")
      list(APPEND prefixes ${from_environment})
    endif()
    if(Torch_DIR)
      list(APPEND prefixes "${Torch_DIR}/../../..")
    endif()
    # Of an installed memledger.
    if(MEMLEDGER_LIBTORCH)
      list(APPEND prefixes "${MEMLEDGER_LIBTORCH}")
    endif()
    foreach(prefix IN LISTS prefixes)
      list(APPEND candidates "${prefix}" "${prefix}/../.." "${prefix}/../../.." "${prefix}/torch" "${prefix}/libtorch")
    endforeach()
  endif()
  foreach(candidate IN LISTS candidates)
    _memledger_is_libtorch("${candidate}" is_libtorch)
    if(is_libtorch)
      get_filename_component(candidate "${candidate}" REALPATH)
      set(${result} "${candidate}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  if(LIBTORCH)
    _memledger_libtorch_error("LIBTORCH=${LIBTORCH}: no include/ATen/ATen.h and lib/libtorch_cpu.so there. Give the folder of an unpacked LibTorch, or of an installed torch package.")
    return()
  endif()
  # A search that imports nothing.
  execute_process(
    COMMAND python3 -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE candidate OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(candidate)
    _memledger_is_libtorch("${candidate}" is_libtorch)
    if(is_libtorch)
      get_filename_component(candidate "${candidate}" REALPATH)
      set(${result} "${candidate}" PARENT_SCOPE)
      return()
    endif()
  endif()
  _memledger_libtorch_error("no LibTorch found. Give -DCMAKE_PREFIX_PATH=/path/to/libtorch (of a Python package: `python3 -c 'import torch; print(torch.utils.cmake_prefix_path)'`), or -DLIBTORCH=/path/to/libtorch.")
endfunction()

function(_memledger_read_version root result)
  foreach(header "torch/headeronly/version.h" "torch/csrc/api/include/torch/version.h")
    if(EXISTS "${root}/include/${header}")
      file(READ "${root}/include/${header}" text)
      set(version "")
      foreach(part MAJOR MINOR PATCH)
        if(text MATCHES "#define TORCH_VERSION_${part} ([0-9]+)")
          list(APPEND version "${CMAKE_MATCH_1}")
        endif()
      endforeach()
      list(LENGTH version parts)
      if(parts EQUAL 3)
        list(JOIN version "." version)
        set(${result} "${version}" PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
  _memledger_libtorch_error("${root} has no version header: memledger needs LibTorch 2.9 or newer. Give another by -DCMAKE_PREFIX_PATH=/path/to/libtorch.")
endfunction()

set(MEMLEDGER_LIBTORCH_ERROR "" CACHE INTERNAL "")
_memledger_find_libtorch(MEMLEDGER_LIBTORCH_ROOT)
if(MEMLEDGER_LIBTORCH_ERROR)
  return()
endif()
_memledger_read_version("${MEMLEDGER_LIBTORCH_ROOT}" MEMLEDGER_LIBTORCH_VERSION)
if(MEMLEDGER_LIBTORCH_ERROR)
  return()
endif()
if(MEMLEDGER_LIBTORCH_VERSION VERSION_LESS 2.9)
  _memledger_libtorch_error("LibTorch ${MEMLEDGER_LIBTORCH_VERSION} at ${MEMLEDGER_LIBTORCH_ROOT} is too old: memledger needs 2.9 or newer. Give another by -DCMAKE_PREFIX_PATH=/path/to/libtorch.")
  return()
endif()
string(REGEX MATCH "^[0-9]+[.][0-9]+" MEMLEDGER_LIBTORCH_SHORT "${MEMLEDGER_LIBTORCH_VERSION}")
# The compiler's setting and LibTorch's must agree, or nothing links.
set(old_abi FALSE)
if(EXISTS "${MEMLEDGER_LIBTORCH_ROOT}/share/cmake/Torch/TorchConfig.cmake")
  file(STRINGS "${MEMLEDGER_LIBTORCH_ROOT}/share/cmake/Torch/TorchConfig.cmake" old_abi REGEX "_GLIBCXX_USE_CXX11_ABI=0" LIMIT_COUNT 1)
endif()
if(old_abi)
  _memledger_libtorch_error("${MEMLEDGER_LIBTORCH_ROOT} is built with the old C++ ABI (_GLIBCXX_USE_CXX11_ABI=0). Use one with the C++11 ABI, such as any torch wheel from 2.9 on.")
  return()
endif()
get_directory_property(definitions COMPILE_DEFINITIONS)
if("${CMAKE_CXX_FLAGS} ${definitions}" MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
  _memledger_libtorch_error("the project is compiled with _GLIBCXX_USE_CXX11_ABI=0, and the LibTorch at ${MEMLEDGER_LIBTORCH_ROOT} with the C++11 ABI. Take the definition out of the project's flags.")
  return()
endif()

# LibTorch's headers need C++20 from 2.14 on.
if(MEMLEDGER_LIBTORCH_VERSION VERSION_LESS 2.14)
  set(MEMLEDGER_CXX_STANDARD 17)
else()
  set(MEMLEDGER_CXX_STANDARD 20)
endif()

if(TARGET memledger_libtorch)
  return()
endif()
find_package(Threads REQUIRED)
add_library(memledger_libtorch INTERFACE)
target_include_directories(memledger_libtorch SYSTEM INTERFACE
  "${MEMLEDGER_LIBTORCH_ROOT}/include" "${MEMLEDGER_LIBTORCH_ROOT}/include/torch/csrc/api/include")
target_compile_features(memledger_libtorch INTERFACE cxx_std_${MEMLEDGER_CXX_STANDARD})
# torch_cpu even if no symbol needs it: operators register themselves when it is loaded. What
# LibTorch's CUDA libraries need may be missing when a program is linked. CMake passes such flags to
# the shell as they are.
target_link_libraries(memledger_libtorch INTERFACE
  "-Wl,--no-as-needed,\"${MEMLEDGER_LIBTORCH_ROOT}/lib/libtorch_cpu.so\",\"${MEMLEDGER_LIBTORCH_ROOT}/lib/libc10.so\",--as-needed"
  Threads::Threads ${CMAKE_DL_LIBS})
target_link_options(memledger_libtorch INTERFACE
  "-Wl,--allow-shlib-undefined"
  "$<$<NOT:$<BOOL:$<TARGET_PROPERTY:MEMLEDGER_ANY_LIBTORCH>>>:-Wl,-rpath,${MEMLEDGER_LIBTORCH_ROOT}/lib>")
add_library(memledger::libtorch ALIAS memledger_libtorch)
