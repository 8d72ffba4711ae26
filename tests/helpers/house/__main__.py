"""Print every figure of the project's structure with its limit: `make house`."""

from __future__ import annotations

from house import chains, lengths, limits, namers, rooms, stores, weight


def main() -> None:
    """Print the figures; the trace and the wheel take a minute."""
    print_names()
    print_layout()
    print_trace()
    print_weight()


def print_names() -> None:
    """Print who names what."""
    print(
        f"entries at the top of jaxspec/: {lengths.count_entries()} (at most {limits.MOST_ENTRIES})"
    )
    for part, found in (
        ("drafter", namers.find_drafter_namers()),
        ("builder", namers.find_builder_namers()),
    ):
        print(f"modules that name each {part} outside its own (at most {limits.MOST_NAMERS}):")
        for name, modules in found.items():
            print(f"  {name}: {len(modules)}  {', '.join(modules)}")


def print_layout() -> None:
    """Print files, lines, imports, stores and lengths."""
    files, lines = lengths.count_installed()
    print(f"installed: {files} Python files (at most {limits.MOST_FILES}, aim 430),")
    print(f"  {lines} lines (at most {limits.MOST_LINES}, aim 55000)")
    folder, most = max(lengths.count_by_folder().items(), key=lambda item: item[1])
    print(f"files in a folder: {most} in {folder} (at most {limits.MOST_FILES_IN_FOLDER})")
    module, most = next(iter(chains.count_imports().items()))
    print(f"imports of a module: {most} in {module} (at most {limits.MOST_IMPORTS})")
    chain = chains.find_longest_chain()
    print(f"longest chain of imports: {len(chain)} (at most {limits.LONGEST_CHAIN}, aim 25)")
    print(f"  {' > '.join(chain)}")
    found = stores.find_stores()
    print(f"stores: {len(found)} (at most {limits.MOST_STORES})  {', '.join(found)}")
    share = lengths.measure_annotated(lengths.LIBRARY / "call")
    print(
        f"annotated arguments in jaxspec/call: {share:.1%} (at least {limits.LEAST_ANNOTATED:.0%})"
    )
    for kind, one in (
        ("module", lengths.measure_modules()),
        ("function", lengths.measure_functions()),
    ):
        print(f"lines of a {kind}: median {one.median:g}, longest {one.longest} ({one.where})")


def print_trace() -> None:
    """Print how `params` passes `decode`."""
    entered, visits = rooms.trace_rooms()
    print(f"rooms of params in decode: {len(entered)} (at most {limits.MOST_ROOMS}, aim 30)")
    print(f"visits of rooms: {len(visits)} (at most {limits.MOST_VISITS}, aim 60)")
    entered, visits = rooms.trace_rooms(budget=8)
    print(f"  with budget=8: {len(entered)} rooms, {len(visits)} visits")


def print_weight() -> None:
    """Print MiB and words."""
    tracked = weight.measure_tracked()
    print(f"tracked files: {tracked:.1f} MiB (below {limits.MOST_TRACKED_MIB:g})")
    wheel = weight.measure_wheel()
    size = wheel if isinstance(wheel, str) else f"{wheel:.1f} MiB"
    print(f"wheel: {size} (below {limits.MOST_WHEEL_MIB:g} MiB)")
    print(f"README: {weight.count_readme_lines()} lines (below {limits.MOST_README_LINES})")
    words = weight.count_page_words()
    print(f"words of {len(words)} pages: {sum(words.values())} (at most {limits.MOST_PAGE_WORDS})")


if __name__ == "__main__":
    main()
