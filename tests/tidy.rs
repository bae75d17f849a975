//! Lint as an ordinary test: room order, sizes, `unsafe`, banned words, dependencies, tables.
//!
//! Reads the sources as text, with no parser: it relies on `cargo fmt` for where things stand. Each
//! test collects every offence before it fails.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

const COLUMNS_MAX: usize = 100;
const FUNCTION_LINES_MAX: usize = 80;
const FILE_LINES_MAX: usize = 700;
/// Rust lines of the engine: everything in src but the forge, tests included.
const ENGINE_LINES_MAX: usize = 18_000;
/// The only places that may hold `unsafe`.
const UNSAFE: [&str; 5] = ["src/sys/", "src/arena/", "src/kernel/", "src/npu/", "src/main.rs"];
/// Everything the engine links beside `core`.
const ENGINE_CRATES: [&str; 5] = ["bytemuck", "half", "heapless", "libc", "unicode-properties"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A text file of the repository, by its name below the root.
struct Source {
    name: String,
    text: String,
}

impl Source {
    fn is(&self, endings: &[&str]) -> bool {
        endings.iter().any(|ending| self.name.ends_with(ending))
    }

    /// The room a file of src belongs to: its folder, or its name without the ending.
    fn room(&self) -> Option<&str> {
        let inside = self.name.strip_prefix("src/")?;
        Some(inside.split_once('/').map_or(inside.trim_end_matches(".rs"), |(room, _)| room))
    }

    /// Lines with their numbers, from 1.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Lines before the unit tests at the file's end.
    fn engine_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let in_tests = self.name.contains("/tests");
        self.lines().take_while(move |(_, line)| !in_tests && *line != "#[cfg(test)]")
    }
}

/// Every text file, sorted by name, without what builds and tools leave.
fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            let name = path.to_str().expect("names are UTF-8").to_string();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() && !name.ends_with("target") && name != ".git" {
                folders.push(path);
            } else if kind.is_file()
                && let Ok(text) = fs::read_to_string(entry.path())
            {
                found.push(Source { name, text });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(found.len() > 100, "the sources are where the manifest is");
    found
}

fn rust() -> Vec<Source> {
    sources().into_iter().filter(|source| source.is(&[".rs"])).collect()
}

/// Fails with every offence, one a line.
fn none(offences: &[String], rule: &str) {
    let mut list = String::new();
    offences.iter().for_each(|offence| writeln!(list, "  {offence}").unwrap());
    assert!(offences.is_empty(), "{rule}:\n{list}");
}

/// The code of a line: no comment, no string. A quote in a character is no string.
fn code(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line.replace("'\"'", "' '").replace("\\\"", "  ");
    if let Some(comment) = rest.find("//") {
        let quotes = rest[..comment].matches('"').count();
        if quotes.is_multiple_of(2) {
            rest.truncate(comment);
        }
    }
    for (index, part) in rest.split('"').enumerate() {
        if index % 2 == 0 {
            out.push_str(part);
        }
    }
    out
}

// Rooms.

/// Room numbers as src/lib.rs tells them in its tour.
fn rooms() -> BTreeMap<String, u32> {
    let lib = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let tour = lib.lines().filter_map(|line| line.strip_prefix("//! "));
    let numbered = tour.filter_map(|line| {
        let mut words = line.split_whitespace();
        let number = words.next()?.parse().ok()?;
        Some((words.next()?.to_string(), number))
    });
    numbered.collect()
}

#[test]
fn the_tour_names_every_room() {
    let rooms = rooms();
    let lib = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let mut offences = Vec::new();
    for entry in fs::read_dir(root().join("src")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() && name != "forge" && !rooms.contains_key(&name) {
            offences.push(format!("src/{name} is not in the tour"));
        }
    }
    for room in rooms.keys() {
        if !root().join("src").join(room).is_dir() {
            offences.push(format!("the tour names {room}, and src/{room} is not there"));
        }
        if !lib.contains(&format!("pub mod {room};")) {
            offences.push(format!("src/lib.rs declares no room {room}"));
        }
    }
    none(&offences, "src/lib.rs tells every room");
    assert!(rooms.len() >= 13 && rooms["plan"] == 0 && rooms["cli"] == 10, "{rooms:?}");
}

/// Names right behind `crate::` in a file's code: `crate::a::b` and `crate::{a, b::c}`.
fn crate_uses(source: &Source) -> Vec<(usize, String)> {
    let code: Vec<String> = source.lines().map(|(_, line)| code(line)).collect();
    let text = code.join("\n");
    let mut uses = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        let line = text[..at].matches('\n').count() + 1;
        let rest = &text[at + "crate::".len()..];
        let Some(group) = rest.strip_prefix('{') else {
            uses.push((line, first_name(rest)));
            continue;
        };
        let (mut depth, mut start) = (0, true);
        for (index, letter) in group.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => start = true,
                _ if letter.is_whitespace() => {}
                _ if start => {
                    uses.push((line, first_name(&group[index..])));
                    start = false;
                }
                _ => {}
            }
        }
    }
    uses
}

fn first_name(text: &str) -> String {
    text.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
}

#[test]
fn a_room_uses_only_rooms_with_smaller_numbers() {
    let rooms = rooms();
    let mut offences = Vec::new();
    let mut seen = 0;
    for source in rust() {
        let Some(number) = source.room().and_then(|room| rooms.get(room)) else { continue };
        let room = source.room().unwrap();
        let tests_from = source.engine_lines().count();
        for (line, used) in crate_uses(&source) {
            seen += 1;
            let allowed = match used.as_str() {
                _ if used == room => true,
                "image" if room == "plan" => true,
                // What the build baked in: the door's to know, and a test's.
                "baked" => room == "cli" || line > tests_from,
                _ => rooms.get(&used).is_some_and(|other| other < number),
            };
            if !allowed {
                offences.push(format!("{}:{line}: {room} uses crate::{used}", source.name));
            }
        }
    }
    assert!(seen > 100, "only {seen} uses found");
    none(&offences, "a room uses only rooms with smaller numbers (src/lib.rs)");
}

#[test]
fn no_room_climbs_out_by_super() {
    let mut offences = Vec::new();
    for source in rust().iter().filter(|source| source.name.starts_with("src/")) {
        // Modules above this file's: its folders, and itself unless it is a mod.rs.
        let folders = source.name.matches('/').count() - 1;
        let mut depth = folders + usize::from(!source.name.ends_with("mod.rs"));
        for (number, line) in source.lines() {
            let line = code(line);
            depth += usize::from(line.starts_with("mod ") && line.ends_with('{'));
            let climbs = (1..5).take_while(|n| line.contains(&"super::".repeat(*n))).count();
            if climbs >= depth && climbs > 0 {
                offences.push(format!("{}:{number}: {}", source.name, line.trim()));
            }
        }
    }
    none(&offences, "other rooms are named by crate::, so that their order is seen");
}

#[test]
fn the_blueprints_use_almost_nothing() {
    let mut offences = Vec::new();
    for source in rust() {
        let crates: &[&str] = match source.room() {
            Some("plan") => &["core"],
            Some("image") => &["core", "bytemuck", "half"],
            _ => continue,
        };
        for (number, line) in source.engine_lines() {
            let line = code(line);
            let line = line.trim_start().trim_start_matches("pub ");
            let used = line.strip_prefix("use ").filter(|path| path.contains("::"));
            let used = used.map_or("core".into(), first_name);
            // A mod.rs passes on what its own files declare.
            let own = ["crate", "super", "self"].contains(&used.as_str())
                || source.name.ends_with("mod.rs") && source.text.contains(&format!("mod {used};"));
            let known = own || crates.contains(&used.as_str());
            if !known || starts_word(line, "std::") || starts_word(line, "alloc::") {
                offences.push(format!("{}:{number}: {line}", source.name));
            }
        }
    }
    none(&offences, "plan uses core, image uses core, bytemuck and half");
}

#[test]
fn the_engine_names_neither_std_nor_alloc() {
    let mut offences = Vec::new();
    for source in rust() {
        let engine = source.name.starts_with("src/") && source.room() != Some("forge");
        if !engine || source.name == "src/main.rs" {
            continue;
        }
        for (number, line) in source.engine_lines() {
            let line = code(line);
            if ["std::", "alloc::", "extern crate"].iter().any(|word| starts_word(&line, word)) {
                offences.push(format!("{}:{number}: {}", source.name, line.trim()));
            }
        }
    }
    none(&offences, "the engine is no_std and has no allocator");
}

/// Whether `word` stands in `line` with no letter before it.
fn starts_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|letter| !letter.is_alphanumeric() && letter != '_')
    })
}

// Sizes.

#[test]
fn lines_fit_in_100_columns() {
    let mut offences = Vec::new();
    for source in sources().iter().filter(|source| source.is(&[".rs", ".c", ".h", ".toml", ".py"]))
    {
        for (number, line) in source.lines() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX {
                offences.push(format!("{}:{number}: {columns} columns", source.name));
            }
            if line.ends_with([' ', '\t']) || line.contains('\t') {
                offences.push(format!("{}:{number}: a tab or a trailing space", source.name));
            }
        }
    }
    none(&offences, "lines fit in 100 columns");
}

#[test]
fn files_are_short() {
    let mut offences = Vec::new();
    for source in sources().iter().filter(|source| source.is(&[".rs", ".c", ".h", ".py"])) {
        let lines = source.text.lines().count();
        if lines > FILE_LINES_MAX {
            offences.push(format!("{}: {lines} lines", source.name));
        }
    }
    none(&offences, "a file has at most 700 lines");
}

/// First line, name and length of every function. `cargo fmt` puts the closing brace below the
/// first letter of the line that begins it.
fn functions(source: &Source) -> Vec<(usize, String, usize)> {
    let lines: Vec<&str> = source.text.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let head = line.trim_start();
        let indent = line.len() - head.len();
        let words = ["pub ", "pub(super) ", "pub(crate) ", "const ", "unsafe ", "extern \"C\" "];
        let mut name = head;
        while let Some(rest) = words.iter().find_map(|word| name.strip_prefix(word)) {
            name = rest;
        }
        let Some(name) = name.strip_prefix("fn ") else { continue };
        let last = lines[index..].iter().position(|line| {
            let closes = line.len() == indent + 1 && line.ends_with('}');
            let ends = line.len() - line.trim_start().len() == indent && line.ends_with([';', '}']);
            closes || ends
        });
        let length = last.map_or(lines.len() - index, |last| last + 1);
        found.push((index + 1, first_name(name), length));
    }
    found
}

#[test]
fn functions_are_short() {
    let mut all = Vec::new();
    for source in rust() {
        for (line, name, length) in functions(&source) {
            all.push((length, format!("{}:{line}: {name} has {length} lines", source.name)));
        }
    }
    all.sort_by(|a, b| b.cmp(a));
    assert!(all.len() > 500, "only {} functions found", all.len());
    all.iter().take(5).for_each(|(_, text)| println!("{text}"));
    let long = all.into_iter().filter(|(length, _)| *length > FUNCTION_LINES_MAX);
    none(&long.map(|(_, text)| text).collect::<Vec<_>>(), "a function has at most 80 lines");
}

#[test]
fn the_engine_keeps_its_line_budget() {
    let engine = |source: &Source| source.room().is_some_and(|room| room != "forge");
    let rust = rust();
    let lines =
        rust.iter().filter(|source| engine(source)).map(|source| source.text.lines().count());
    let lines: usize = lines.sum();
    println!("the engine has {lines} of {ENGINE_LINES_MAX} lines");
    assert!(lines > 1_000 && lines <= ENGINE_LINES_MAX, "{lines} lines of {ENGINE_LINES_MAX}");
}

// Habits.

#[test]
fn every_source_says_what_it_is_for() {
    let mut offences = Vec::new();
    for source in rust() {
        let first = source.text.lines().next().unwrap_or_default();
        let empty = source.text.trim().is_empty();
        if !first.starts_with("//! ") && (!empty || source.name.starts_with("src/")) {
            offences.push(format!("{}: {first}", source.name));
        }
    }
    none(&offences, "the first line of a source begins with `//! `");
}

#[test]
fn unsafe_stays_in_its_rooms() {
    let mut offences = Vec::new();
    for source in rust() {
        let used = source.lines().map(|(number, line)| (number, code(line))).find(|(_, line)| {
            line.match_indices("unsafe").any(|(at, word)| {
                let after = line[at + word.len()..].chars().next();
                starts_word(&line[at..], word) && after.is_none_or(|next| next != '_')
            })
        });
        let Some((number, _)) = used else { continue };
        let place = format!("{}:{number}", source.name);
        let tests = source.name.starts_with("tests/");
        if !tests && !UNSAFE.iter().any(|room| source.name.starts_with(room)) {
            offences.push(format!("{place}: no place for unsafe"));
        }
        // The mod.rs of a folder above may allow it for the files below.
        let allows = |folder: &Path| {
            let text = fs::read_to_string(root().join(folder).join("mod.rs")).unwrap_or_default();
            text.contains("#![allow(unsafe_code)]")
        };
        let above = Path::new(&source.name).ancestors().skip(1).any(allows);
        if !source.text.contains("allow(unsafe_code)") && !above {
            offences.push(format!("{place}: says no allow(unsafe_code)"));
        }
    }
    none(&offences, "unsafe code is only in sys, arena, kernel, npu, and says so");
}

#[test]
fn every_allow_has_its_reason() {
    let mut offences = Vec::new();
    for source in rust() {
        for (number, line) in source.lines() {
            let allow = line.trim_start().starts_with("#[allow(")
                || line.trim_start().starts_with("#![allow(");
            if allow && !line.contains("] // ") && !line.contains("reason = ") {
                offences.push(format!("{}:{number}: {}", source.name, line.trim()));
            }
        }
    }
    none(&offences, "an allow says why on its line");
}

#[test]
fn nothing_is_left_for_later() {
    // In two parts, so that this file is not its own first offence.
    let words = [
        concat!("to", "do!"),
        concat!("unimple", "mented!"),
        concat!("db", "g!"),
        concat!("FIX", "ME"),
        concat!("TO", "DO"),
        concat!("XX", "X"),
        concat!("HA", "CK"),
    ];
    let mut offences = Vec::new();
    for source in sources().iter().filter(|source| source.is(&[".rs", ".c", ".h", ".md", ".toml"]))
    {
        for (number, line) in source.lines() {
            for word in words.iter().filter(|word| starts_word(line, word)) {
                offences.push(format!("{}:{number}: {word}", source.name));
            }
        }
    }
    none(&offences, "no unfinished business");
}

#[test]
fn no_file_names_a_place_on_some_machine() {
    let places = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
        concat!("/tmp/ba", "sh"),
    ];
    let mut offences = Vec::new();
    for source in sources() {
        for place in places.iter().filter(|place| source.text.contains(*place)) {
            offences.push(format!("{}: {place}", source.name));
        }
    }
    none(&offences, "no file names a place on the machine it was written on");
}

// Tables.

#[test]
fn the_engine_links_only_a_short_list() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let section = manifest.split("\n[dependencies]\n").nth(1).unwrap();
    let section = section.split("\n[").next().unwrap();
    let entries = section.lines().filter(|line| !line.starts_with('#') && line.contains('='));
    let mut engine: Vec<&str> = entries
        .filter(|line| !line.contains("optional = true"))
        .map(|line| line.split([' ', '=']).next().unwrap())
        .collect();
    engine.sort_unstable();
    assert_eq!(engine, ENGINE_CRATES, "dependencies of the engine, which are not optional");
    let mut offences = Vec::new();
    let engine: String = rust()
        .into_iter()
        .filter(|source| source.room().is_some_and(|room| room != "forge"))
        .flat_map(|source| source.lines().map(|(_, line)| code(line) + "\n").collect::<Vec<_>>())
        .collect();
    for name in ENGINE_CRATES.map(|name| name.replace('-', "_")) {
        if !starts_word(&engine, &format!("{name}::")) {
            offences.push(name);
        }
    }
    none(&offences, "every dependency of the engine is used by it");
}

/// Entries of `folder` that `table` does not name in back quotes. A folder that holds the parts of
/// a suite is named with it; an empty one is nobody's.
fn unlisted(folder: &str, table: &str, is_listed: fn(&str, bool) -> bool) -> Vec<String> {
    let text = fs::read_to_string(root().join(table)).unwrap_or_default();
    let folder_path = root().join(folder);
    let mut offences = Vec::new();
    for entry in fs::read_dir(&folder_path).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let is_folder = entry.file_type().unwrap().is_dir();
        let part = folder_path.join(format!("{name}.rs")).exists();
        let empty = is_folder && fs::read_dir(entry.path()).unwrap().next().is_none();
        let word = if is_folder { format!("`{name}/`") } else { format!("`{name}`") };
        let named = text.contains(&word) || text.contains(&word.replace(".rs`", "`"));
        if is_listed(&name, is_folder) && !part && !empty && !named {
            offences.push(format!("{table} does not name {folder}/{name}"));
        }
    }
    offences
}

#[test]
fn every_folder_is_in_its_table() {
    let suite = |name: &str, folder| folder || name.ends_with(".rs");
    let mut offences = unlisted("tests", "tests/README.md", suite);
    offences.extend(unlisted("tests/data", "tests/data/README.md", |_, folder| folder));
    offences.extend(unlisted("plans", "plans/README.md", |name, _| name != "README.md"));
    offences.extend(unlisted("plans/devices", "plans/README.md", |_, _| true));
    offences.extend(unlisted("plans/models", "plans/README.md", |_, _| true));
    none(&offences, "every suite and folder is named in its table");
}

#[test]
fn every_kernel_is_in_its_table() {
    let table = fs::read_to_string(root().join("kernels/README.md")).unwrap();
    let ffi = fs::read_to_string(root().join("src/kernel/ffi.rs")).unwrap();
    let names = |text: &str, before: &str| -> Vec<String> {
        let mut names: Vec<String> =
            text.split(before).skip(1).map(|rest| format!("gk_{}", first_name(rest))).collect();
        names.sort();
        names.dedup();
        names
    };
    let declared = names(&ffi, "fn gk_");
    assert!(declared.len() >= 10, "{declared:?}");
    assert_eq!(names(&table, "| `gk_"), declared, "kernels/README.md against src/kernel/ffi.rs");
}
