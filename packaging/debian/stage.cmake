# Run by cpack over each staged package: adds to it what Debian wants, and puts files where Debian looks for them.

# Licence and changelogs, the manual pages compressed without a time stamp.
function(compress file)
  execute_process(COMMAND gzip -9nf ${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(write_documents folder package)
  file(READ ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../../NOTICE notice)
  string(REGEX REPLACE "\n\n" "\n.\n" notice "${notice}")
  string(REGEX REPLACE "\n(.)" "\n \\1" notice "${notice}")
  file(
    WRITE ${folder}/copyright
    "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: penstock\n\nFiles: *\nCopyright: 2026 The Penstock authors\nLicense: Apache-2.0\n On Debian systems, the text of the Apache License, Version 2.0, is in\n /usr/share/common-licenses/Apache-2.0.\nComment:\n ${notice}"
  )
  file(COPY_FILE ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../../CHANGELOG.md ${folder}/changelog)
  file(TIMESTAMP ${folder}/changelog date "%a, %d %b %Y %H:%M:%S +0000" UTC)
  file(
    WRITE ${folder}/changelog.Debian
    "penstock (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- ${CPACK_PACKAGE_CONTACT}  ${date}\n"
  )
  compress(${folder}/changelog)
  compress(${folder}/changelog.Debian)
endfunction()

foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  string(TOUPPER ${component} upper)
  set(package ${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
  set(share ${CPACK_TEMPORARY_DIRECTORY}/${component}${CPACK_PACKAGING_INSTALL_PREFIX}/share)
  write_documents(${share}/doc/${package} ${package})
  file(GLOB pages ${share}/man/man*/*)
  foreach(page IN LISTS pages)
    compress(${page})
  endforeach()
  # Debian's zsh looks here for completions of packages.
  if(EXISTS ${share}/zsh/site-functions)
    file(RENAME ${share}/zsh/site-functions ${share}/zsh/vendor-completions)
  endif()
endforeach()
