# The libraries that users of weft::weft see too: weft::libtorch, weft::pfr, Threads::Threads.
# Included by Weft's own build and, installed, by weftConfig.cmake.
#
# libtorch is looked up directly rather than by find_package(Torch): its own package pulls in
# protobuf and glog on Debian, and stops with an error where a CUDA build meets a machine without
# the CUDA toolkit, though neither is needed to compile or link. It is searched for in
#   WEFT_LIBTORCH          a prefix with include/ and lib/
#   Torch_DIR, CMAKE_PREFIX_PATH   as for find_package(Torch), so that
#                          -DCMAKE_PREFIX_PATH=$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)')
#                          works
#   weft_built_with_libtorch       where the installed Weft found it
#   the system's own places.

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

if(NOT TARGET weft::pfr)
  find_path(WEFT_PFR_INCLUDE_DIR boost/pfr.hpp HINTS ${weft_built_with_pfr})
  if(NOT WEFT_PFR_INCLUDE_DIR)
    message(FATAL_ERROR "Weft needs Boost.PFR (Boost 1.75 or later): install libboost1.81-dev, "
                        "or set WEFT_PFR_INCLUDE_DIR to the folder that holds boost/pfr.hpp")
  endif()
  add_library(weft::pfr INTERFACE IMPORTED)
  target_include_directories(weft::pfr SYSTEM INTERFACE ${WEFT_PFR_INCLUDE_DIR})
endif()

if(NOT TARGET weft::libtorch)
  set(weft_torch_hints ${WEFT_LIBTORCH} ${weft_built_with_libtorch})
  foreach(prefix IN LISTS Torch_DIR CMAKE_PREFIX_PATH)
    # <prefix>/share/cmake and <prefix>/share/cmake/Torch name <prefix>.
    string(REGEX REPLACE "/share/cmake(/Torch)?/?$" "" prefix "${prefix}")
    list(APPEND weft_torch_hints ${prefix})
  endforeach()
  find_path(WEFT_TORCH_INCLUDE_DIR ATen/ATen.h HINTS ${weft_torch_hints} PATH_SUFFIXES include)
  if(NOT WEFT_TORCH_INCLUDE_DIR)
    message(FATAL_ERROR "Weft needs libtorch: install libtorch-dev, or point CMAKE_PREFIX_PATH or "
                        "WEFT_LIBTORCH at it")
  endif()
  # The libraries that belong to these headers, before any others.
  get_filename_component(weft_torch_root ${WEFT_TORCH_INCLUDE_DIR} DIRECTORY)
  foreach(library IN ITEMS torch torch_cpu c10)
    find_library(WEFT_${library}_LIBRARY ${library} HINTS ${weft_torch_root} PATH_SUFFIXES lib)
    if(NOT WEFT_${library}_LIBRARY)
      message(FATAL_ERROR "Weft found libtorch's headers in ${WEFT_TORCH_INCLUDE_DIR} but no lib${library}")
    endif()
  endforeach()

  set(weft_torch_api ${WEFT_TORCH_INCLUDE_DIR}/torch/csrc/api/include)
  set(WEFT_TORCH_VERSION)
  foreach(header IN ITEMS ${weft_torch_api}/torch/version.h ${WEFT_TORCH_INCLUDE_DIR}/torch/headeronly/version.h)
    if(EXISTS ${header})
      file(STRINGS ${header} lines REGEX "define TORCH_VERSION_(MAJOR|MINOR) [0-9]+")
      if(lines MATCHES "MAJOR ([0-9]+).*MINOR ([0-9]+)")
        set(WEFT_TORCH_VERSION ${CMAKE_MATCH_1}.${CMAKE_MATCH_2})
      endif()
    endif()
  endforeach()
  message(STATUS "Found libtorch ${WEFT_TORCH_VERSION}: ${WEFT_torch_LIBRARY}")
  if(WEFT_TORCH_VERSION AND WEFT_TORCH_VERSION VERSION_LESS 1.13)
    message(FATAL_ERROR "Weft needs libtorch 1.13 or later, this is ${WEFT_TORCH_VERSION}")
  endif()

  add_library(weft::libtorch INTERFACE IMPORTED)
  target_include_directories(weft::libtorch SYSTEM INTERFACE ${WEFT_TORCH_INCLUDE_DIR} ${weft_torch_api})
  # As libtorch's own package defines it: its headers hide c10d otherwise.
  target_compile_definitions(weft::libtorch INTERFACE USE_DISTRIBUTED)
  # libtorch.so itself defines nothing; it loads the backends, so no linker may drop it.
  target_link_libraries(
    weft::libtorch INTERFACE "-Wl,--push-state,--no-as-needed,${WEFT_torch_LIBRARY},--pop-state"
                             ${WEFT_torch_cpu_LIBRARY} ${WEFT_c10_LIBRARY})

  # Builds of libtorch with the old std::string need the same of everybody.
  if(EXISTS ${weft_torch_root}/share/cmake/Torch/TorchConfig.cmake)
    file(STRINGS ${weft_torch_root}/share/cmake/Torch/TorchConfig.cmake weft_torch_old_abi
         REGEX "_GLIBCXX_USE_CXX11_ABI=0")
    if(weft_torch_old_abi)
      target_compile_definitions(weft::libtorch INTERFACE _GLIBCXX_USE_CXX11_ABI=0)
    endif()
  endif()

  # Where libtorch logs through glog, inline functions of its headers do so too.
  file(STRINGS ${WEFT_TORCH_INCLUDE_DIR}/c10/macros/cmake_macros.h weft_torch_glog REGEX "^#define C10_USE_GLOG")
  if(weft_torch_glog)
    find_library(WEFT_GLOG_LIBRARY glog)
    if(WEFT_GLOG_LIBRARY)
      target_link_libraries(weft::libtorch INTERFACE ${WEFT_GLOG_LIBRARY})
    endif()
  endif()
endif()
