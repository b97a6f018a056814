# The command `memledger`, the libraries that it preloads, and the virtual GPU, in the layout in which
# they are installed: bin/memledger looks for the rest beside itself.

function(memledger_preloaded target)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY "${MEMLEDGER_TREE}/lib/memledger")
  target_compile_features(${target} PRIVATE cxx_std_17)
  target_compile_options(${target} PRIVATE ${MEMLEDGER_WARNINGS} -fno-exceptions -fno-rtti)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_options(${target} PRIVATE "-Wl,--as-needed")
  target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS})
endfunction()
add_library(memledger_preload SHARED ${MEMLEDGER_PRELOAD_SOURCES})
memledger_preloaded(memledger_preload)
add_library(memledger_measure SHARED ${MEMLEDGER_MEASURE_SOURCES})
memledger_preloaded(memledger_measure)

add_executable(memledger_command ${MEMLEDGER_COMMAND_SOURCES})
memledger_compile(memledger_command)
add_dependencies(memledger_command memledger_generated)
# LibTorch's headers only: the command does not load it.
target_include_directories(memledger_command SYSTEM PRIVATE
  "${MEMLEDGER_LIBTORCH_ROOT}/include" "${MEMLEDGER_LIBTORCH_ROOT}/include/torch/csrc/api/include")
target_link_libraries(memledger_command PRIVATE
  ${MEMLEDGER_ABSEIL} memledger_json memledger_cli11 memledger_fmt_headers Threads::Threads ${CMAKE_DL_LIBS})
# The library's groups; what the command alone has is compiled file by file.
memledger_unity_build(memledger_command)
set_target_properties(memledger_command PROPERTIES
  OUTPUT_NAME memledger
  RUNTIME_OUTPUT_DIRECTORY "${MEMLEDGER_TREE}/bin")
add_dependencies(memledger_command memledger_preload memledger_measure memledger_runtime)

set(MEMLEDGER_VIRTUAL_GPU_FOLDER "${MEMLEDGER_TREE}/lib/memledger/virtual_gpu")
set(virtual_gpu_list "${MEMLEDGER_VIRTUAL_GPU_FOLDER}/preload.txt")
if(MEMLEDGER_LIBTORCH_HAS_CUDA)
  # They are loaded into any program: they have their own C++ library, and show none of it. The
  # second is for programs with NVIDIA's own libraries.
  add_library(memledger_answers_objects OBJECT ${MEMLEDGER_VIRTUAL_GPU_SOURCES})
  set_target_properties(memledger_answers_objects PROPERTIES POSITION_INDEPENDENT_CODE ON)
  add_library(memledger_answers SHARED $<TARGET_OBJECTS:memledger_answers_objects>)
  add_library(memledger_driver SHARED $<TARGET_OBJECTS:memledger_answers_objects>)
  add_executable(memledger_cudnn_planner ${MEMLEDGER_CUDNN_PLANNER_SOURCES})
  add_library(memledger_cudnn_planner_driver SHARED ${MEMLEDGER_CUDNN_PLANNER_DRIVER_SOURCES})
  add_executable(memledger_nvidia_smi ${MEMLEDGER_NVIDIA_SMI_SOURCES})
  set_target_properties(memledger_nvidia_smi PROPERTIES OUTPUT_NAME nvidia-smi)
  foreach(target memledger_answers_objects memledger_answers memledger_driver memledger_cudnn_planner memledger_cudnn_planner_driver memledger_nvidia_smi)
    memledger_compile(${target})
    set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
    target_link_libraries(${target} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
  endforeach()
  target_link_libraries(memledger_answers_objects PRIVATE memledger_libtorch_cuda memledger_json)
  foreach(pair "memledger_answers:exported.lds" "memledger_driver:exported_driver.lds")
    string(REGEX MATCH "^[^:]*" target "${pair}")
    string(REGEX MATCH "[^:]*$" exported "${pair}")
    target_link_libraries(${target} PRIVATE memledger_libtorch_cuda memledger_json)
    target_link_options(${target} PRIVATE
      "-static-libgcc" "-static-libstdc++" "-Wl,-Bsymbolic-functions" "-Wl,-soname,libmemledger_virtual_gpu.so"
      "-Wl,--version-script=${PROJECT_SOURCE_DIR}/virtual_gpu/${exported}" "-Wl,--as-needed")
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX NO_SONAME ON)
  endforeach()
  set_target_properties(memledger_answers PROPERTIES OUTPUT_NAME memledger_virtual_gpu)
  set_target_properties(memledger_driver PROPERTIES OUTPUT_NAME memledger_virtual_driver)
  target_link_options(memledger_cudnn_planner_driver PRIVATE "-Wl,-soname,libcuda.so.1")
  set_target_properties(memledger_cudnn_planner_driver PROPERTIES NO_SONAME ON)
  list(GET MEMLEDGER_CUDA_INCLUDES 0 cuda_runtime_headers)
  add_custom_command(
    OUTPUT "${virtual_gpu_list}"
    COMMAND ${CMAKE_COMMAND} -E rm -rf "${MEMLEDGER_VIRTUAL_GPU_FOLDER}"
    COMMAND ${CMAKE_COMMAND} -E make_directory "${MEMLEDGER_VIRTUAL_GPU_FOLDER}"
    COMMAND "${MEMLEDGER_PYTHON}" "${PROJECT_SOURCE_DIR}/virtual_gpu/generate_stubs.py"
            --libtorch "${MEMLEDGER_LIBTORCH_ROOT}/lib" --answers "$<TARGET_FILE:memledger_answers>"
            --driver "$<TARGET_FILE:memledger_driver>"
            --headers "${cuda_runtime_headers}" --cc "${CMAKE_CXX_COMPILER}" --out "${MEMLEDGER_VIRTUAL_GPU_FOLDER}"
    COMMAND ${CMAKE_COMMAND} -E copy "$<TARGET_FILE:memledger_cudnn_planner>" "$<TARGET_FILE:memledger_cudnn_planner_driver>"
            "$<TARGET_FILE:memledger_nvidia_smi>" "${MEMLEDGER_VIRTUAL_GPU_FOLDER}"
    DEPENDS memledger_answers memledger_driver memledger_cudnn_planner memledger_cudnn_planner_driver memledger_nvidia_smi
            "${PROJECT_SOURCE_DIR}/virtual_gpu/generate_stubs.py" "${MEMLEDGER_LIBTORCH_ROOT}/lib/libtorch_cuda.so"
    COMMENT "Making stand-ins for NVIDIA's libraries"
    VERBATIM)
else()
  file(WRITE "${virtual_gpu_list}" "")
endif()
add_custom_target(memledger_virtual_gpu_libraries ALL DEPENDS "${virtual_gpu_list}")
add_dependencies(memledger_command memledger_virtual_gpu_libraries)

