# Installs a build of Weft into a scratch prefix, builds this folder against it as an outside user
# would, and runs one program of it. The environment's WEFT_TOUR_RUNS says how often (default 1).

function(run_step)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    list(JOIN ARGV " " text)
    message(FATAL_ERROR "failed (${status}): ${text}")
  endif()
endfunction()

set(prefix ${scratch}/prefix)
file(REMOVE_RECURSE ${scratch})
run_step(${CMAKE_COMMAND} --install ${weft_build} --config ${config} --prefix ${prefix})

# A sanitizer of the library must be in the program too. The program is not optimized, for that takes
# half the time.
list(JOIN flags " " flags)
run_step(
  ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${scratch}/build -G Ninja
  -D CMAKE_CXX_COMPILER=${compiler} -D "CMAKE_CXX_COMPILER_LAUNCHER=${launcher}" -D "CMAKE_CXX_FLAGS=${flags}"
  -D CMAKE_PREFIX_PATH=${prefix})
run_step(${CMAKE_COMMAND} --build ${scratch}/build --target ${program})

set(runs 1)
if(DEFINED ENV{WEFT_TOUR_RUNS})
  set(runs $ENV{WEFT_TOUR_RUNS})
endif()
foreach(run RANGE 1 ${runs})
  run_step(${scratch}/build/${program})
endforeach()
