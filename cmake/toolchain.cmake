# How Weft's own code is compiled: warnings, sanitizers, compiler cache, which sources together.

find_program(WEFT_CCACHE ccache)
if(WEFT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${WEFT_CCACHE})
endif()

if(WEFT_SANITIZE STREQUAL "address")
  # vptr wants the type information of classes that libtorch does not export.
  set(weft_sanitize_flags -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all)
elseif(WEFT_SANITIZE STREQUAL "thread")
  set(weft_sanitize_flags -fsanitize=thread)
elseif(WEFT_SANITIZE)
  message(FATAL_ERROR "WEFT_SANITIZE is neither empty, address nor thread: ${WEFT_SANITIZE}")
endif()
if(WEFT_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "libFuzzer needs clang++, not ${CMAKE_CXX_COMPILER_ID}: use the preset `fuzz`")
  endif()
  list(APPEND weft_sanitize_flags -fsanitize=fuzzer-no-link)
endif()
if(weft_sanitize_flags)
  add_compile_options(${weft_sanitize_flags} -fno-omit-frame-pointer)
  add_link_options(${weft_sanitize_flags})
endif()

# Settings for a target whose sources are ours. Other libraries' headers are system includes, so
# their warnings stay silent.
function(weft_own_code target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic $<$<BOOL:${WEFT_WERROR}>:-Werror>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    # g++ 13 sees atomics of reference-counted objects overflow where inlining hides their allocation.
    target_compile_options(${target} PRIVATE -Wno-stringop-overflow)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Functions are not replaced at load time, so calls within a file may be inlined.
    target_compile_options(${target} PRIVATE -fno-semantic-interposition)
  endif()
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # What include/weft/detail/mutex.h annotates.
    target_compile_options(${target} PRIVATE -Wthread-safety)
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "SHARED_LIBRARY" AND NOT weft_sanitize_flags)
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
  if(type STREQUAL "SHARED_LIBRARY")
    # Nor between files: they call each other directly, not through the table of the dynamic linker,
    # which takes 4 % off a call.
    target_link_options(${target} PRIVATE -Wl,-Bsymbolic-functions)
  endif()
endfunction()

# Compiles the sources of each folder together, `at_most` so many at a time. Most files here take
# less time than the libtorch headers they include, and so a folder pays for those once. What two
# files of a folder call the same in their anonymous namespaces clashes then: rename it, or name one
# of the files after ALONE.
function(weft_unite_folders target at_most)
  if(NOT WEFT_UNITY)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" ALONE)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME)
    get_filename_component(folder ${source} DIRECTORY)
    # The rooms of a layer are compiled together: each file costs little beside libtorch's headers.
    string(REGEX REPLACE "^(${PROJECT_SOURCE_DIR}/)?(src/[a-z_]+)/.*$" "\\2" folder ${folder})
    get_filename_component(folder ${folder} NAME)
    if(NOT name IN_LIST arg_ALONE)
      list(LENGTH united_${folder} count)
      math(EXPR batch "${count} / ${at_most}")
      list(APPEND united_${folder} ${name})
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}_${batch})
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Meant for headers: g++ takes every file that another includes for one.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()
