# Unity builds: some files of a target are compiled as one, so that LibTorch's headers are parsed ten
# times and not a hundred. -DMEMLEDGER_UNITY_BUILD=OFF compiles every file by itself.

# Files of one group must not give two things one name. A file that does is in another group.
set(MEMLEDGER_GROUP_OF_prediction/prediction_json.cc text)
set(MEMLEDGER_GROUP_OF_graph/formats/saved_tensors_json.cc tracker_modules)
set(MEMLEDGER_GROUP_OF_registry/allocation_failure.cc text)
set(MEMLEDGER_GROUP_OF_registry/hooks/training_notes.cc tracker)
set(MEMLEDGER_GROUP_OF_registry/second_copy/copies.cc tracker)
set(MEMLEDGER_GROUP_OF_registry/snapshot.cc logs)
set(MEMLEDGER_GROUP_OF_reporter/formats/report_text.cc logs)
set(MEMLEDGER_GROUP_OF_reporter/names/script_module.cc tracker_modules)
set(MEMLEDGER_GROUP_OF_reporter/names/told_names.cc hooks)
set(MEMLEDGER_GROUP_OF_runner/program_image.cc text)
set(MEMLEDGER_GROUP_OF_tracker/layers/layer_switches.cc graph)
set(MEMLEDGER_GROUP_OF_tracker/lines/profiled_body.cc reporter)
set(MEMLEDGER_GROUP_OF_tracker/timeline/timeline_files.cc graph)
foreach(source registry/step_history.cc reporter/formats/run_summary.cc virtual_gpu/values/read_rules.cc)
  set(MEMLEDGER_GROUP_OF_${source} inside)
endforeach()
foreach(source registry/core/other_threads.cc tracker/lines/python_frames.cc runner/inside/exec_calls.cc runner/inside/interrupted_call.cc runner/inside/process_end.cc
               runner/inside/thread_calls.cc runner/inside/thread_visits.cc runner/inside/demand_thread.cc runner/inside/measure.cc runner/inside/watch.cc runner/inside/write_in_copy.cc virtual_gpu/values/size_reads.cc virtual_gpu/values/values.cc)
  set(MEMLEDGER_GROUP_OF_${source} none)
endforeach()

# By folder, the longest that fits. Those of layers, names, iterations and the timeline include
# torch/nn/module.h, which costs as much as everything else together.
set(MEMLEDGER_GROUPS
  "registry/core/=core" "registry/hooks/=hooks" "registry/=registry" "graph/=graph"
  "reporter/names/=names" "reporter/mem_reporter=names" "reporter/out_of_memory=names" "reporter/=reporter"
  "tracker/lines/=logs" "tracker/log/=logs"
  "tracker/courtesy/=tracker" "tracker/growth/=tracker" "tracker/testing/=tracker"
  "tracker/device_cache=tracker" "tracker/storage_group=tracker" "tracker/values_text=tracker"
  "tracker/=tracker_modules" "prediction/=none" "runner/inside/=inside" "runner/writes/=none" "runner/=none"
  "text/=text" "virtual_gpu/values/=values")

function(memledger_unity_build target)
  if(NOT MEMLEDGER_UNITY_BUILD)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # GCC takes what is in an unnamed namespace of an included file for a header's.
  target_compile_options(${target} PRIVATE "$<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>")
  foreach(source IN LISTS ARGN)
    set(group "${MEMLEDGER_GROUP_OF_${source}}")
    foreach(entry IN LISTS MEMLEDGER_GROUPS)
      if(group)
        break()
      endif()
      string(REGEX MATCH "^(.*)=(.*)$" entry "${entry}")
      set(name "${CMAKE_MATCH_2}")
      string(FIND "${source}" "${CMAKE_MATCH_1}" position)
      if(position EQUAL 0)
        set(group "${name}")
      endif()
    endforeach()
    if(group AND NOT group STREQUAL "none")
      set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${group}")
    endif()
  endforeach()
endfunction()
