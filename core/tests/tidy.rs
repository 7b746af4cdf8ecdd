//! Rules of this repository that a program can check.

use std::path::{Path, PathBuf};

/// The only folder with `unsafe`.
const BORDER: &str = "src/ffi/";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Every Rust file of the server's side: its path from the root, and its text.
fn sources() -> Vec<(String, String)> {
    sources_in(&["core", "engine", "src", "simulation", "testkit", "tests", "bench"])
}

fn sources_in(folders: &[&str]) -> Vec<(String, String)> {
    let (mut open, mut found) =
        (folders.iter().map(|f| root().join(f)).collect::<Vec<_>>(), vec![]);
    while let Some(folder) = open.pop() {
        for entry in folder.read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let name = path.strip_prefix(root()).unwrap().display().to_string();
                found.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() > 20, "only {} files were found", found.len());
    found
}

#[test]
fn files_fit_a_sitting_and_lines_a_window() {
    let mut wrong = Vec::new();
    for (name, text) in sources().into_iter().chain(sources_in(&["clients"])) {
        let lines = text.lines().count();
        if lines > 500 {
            wrong.push(format!("{name} has {lines} lines"));
        }
    }
    for (name, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > 100 {
                wrong.push(format!("{name}:{} has {columns} columns", number + 1));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn all_that_is_unsafe_is_in_one_folder_and_says_why() {
    for (name, text) in sources() {
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        for (number, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let is_unsafe = code
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .any(|word| word == concat!("un", "safe"));
            if !is_unsafe {
                continue;
            }
            let place = format!("{name}:{}", number + 1);
            if code.contains("extern") {
                continue;
            }
            assert!(name.starts_with(BORDER), "{place}: {line}");
            let before = &lines[number.saturating_sub(6)..number];
            let is_explained = before
                .iter()
                .any(|line| line.starts_with("// SAFETY") || line.starts_with("/// # Safety"));
            // Attributes, the types of callbacks, and code with its own section on safety.
            let is_exempt = code.contains(concat!("un", "safe(no_mangle)"))
                || code.contains(concat!("un", "safe fn"));
            assert!(is_explained || is_exempt, "{place} does not say why it is sound");
        }
    }
}

/// The modules of each crate, in order: each uses only those before it. `lib` of the engine runs
/// deferred work, so it may use all of them.
const ROOMS: [(&str, &[&str]); 2] = [
    (
        "src/",
        &[
            "ffi",
            "state",
            "tokens",
            "disk",
            "servers",
            "settings",
            "metrics",
            "timers",
            "connection",
            "closing",
            "host",
            "events",
            "invocation",
            "show",
            "commands",
            "lib",
        ],
    ),
    (
        "engine/src/",
        &[
            "planted",
            "slot",
            "happening",
            "reply",
            "state",
            "host",
            "protocol",
            "gate",
            "unsaved",
            "timers",
            "publish",
            "sink",
            "answers",
            "acks",
            "unit",
            "reports",
            "open_locks",
            "held_back",
            "given_up",
            "groups",
            "carry_out",
            "replay",
            "blocked",
            "observers",
            "several",
            "several_request",
            "sweep",
            "events",
            "commands",
            "lib",
        ],
    ),
];

/// The modules that a text names after `crate::`.
fn rooms_named(text: &str, rooms: &[&str]) -> Vec<String> {
    let is_letter = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut named = Vec::new();
    for rest in text.split("crate::").skip(1) {
        let Some(inside) = rest.strip_prefix('{') else {
            named.extend(rest.split(|letter| !is_letter(letter)).next().map(str::to_owned));
            continue;
        };
        // The names at one level of a `use`: `{a, b::{c, d}}`.
        let (mut depth, mut word) = (0, String::new());
        for letter in inside.chars() {
            match letter {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => named.push(std::mem::take(&mut word)),
                letter if depth == 0 && (is_letter(letter) || letter == ':') => word.push(letter),
                _ => {}
            }
        }
        named.push(word);
    }
    let firsts = named.into_iter().map(|path| path.split(':').next().unwrap().to_owned());
    firsts.filter(|name| rooms.contains(&name.as_str())).collect()
}

#[test]
fn no_room_knows_of_one_that_is_built_on_it() {
    for (crate_root, rooms) in ROOMS {
        let place = |room: &str| rooms.iter().position(|other| *other == room);
        let files = sources().into_iter().filter(|(name, _)| name.starts_with(crate_root));
        for (name, text) in files {
            let path = name.strip_prefix(crate_root).unwrap();
            let room = path.split(['/', '.']).next().unwrap();
            let own = place(room).unwrap_or_else(|| panic!("{name} is in no room with a place"));
            let is_code = |line: &&str| !line.trim_start().starts_with("//");
            let code: String = text.lines().filter(is_code).flat_map(|line| [line, "\n"]).collect();
            for other in rooms_named(&code, rooms).into_iter().filter(|other| other != room) {
                assert!(place(&other) < Some(own), "{name} knows of {other}");
            }
        }
    }
}

/// Splits at the commas outside of brackets.
fn split_at_commas(text: &str) -> Vec<String> {
    let (mut depth, mut parts, mut before) = (0, vec![String::new()], ' ');
    for letter in text.chars() {
        match letter {
            '(' | '[' | '{' | '<' => depth += 1,
            '>' if before == '-' || before == '=' => {}
            ')' | ']' | '}' | '>' => depth -= 1,
            _ => {}
        }
        before = letter;
        match letter {
            ',' if depth == 0 => parts.push(String::new()),
            letter => parts.last_mut().unwrap().push(letter),
        }
    }
    parts
}

/// The parameters of the function whose name and generics begin this text.
fn parameters(text: &str) -> Vec<String> {
    let (mut generics, mut parens, mut before, mut inside) = (0, 0, ' ', String::new());
    for letter in text.chars() {
        match letter {
            '<' if parens == 0 => generics += 1,
            '>' if parens == 0 && before != '-' => generics -= 1,
            ')' if generics == 0 && parens == 1 => return split_at_commas(&inside),
            _ => {}
        }
        if parens > 0 {
            inside.push(letter);
        }
        match letter {
            '(' if generics == 0 => parens += 1,
            ')' if generics == 0 => parens -= 1,
            _ => {}
        }
        before = letter;
    }
    Vec::new()
}

/// Whether a parameter is a tuple: its parts have no names where the function is called.
fn is_anonymous_tuple(parameter: &str) -> bool {
    let parameter = parameter.trim();
    let of_type = parameter.split_once(": ").map_or("", |(_, of_type)| of_type);
    let of_type = of_type.trim_start_matches(['&', ' ']);
    let of_type = of_type.trim_start_matches("mut ");
    parameter.starts_with('(') || of_type.starts_with('(') && !of_type.starts_with("()")
}

#[test]
fn no_parameter_is_an_anonymous_tuple() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (name, text) in sources() {
        let is_code = |line: &&str| !line.trim_start().starts_with("//");
        let code: Vec<&str> = text.lines().filter(is_code).collect();
        for function in code.join(" ").split(" fn ").skip(1) {
            for parameter in parameters(function) {
                seen += 1;
                if is_anonymous_tuple(&parameter) {
                    wrong.push(format!(
                        "{name}: {} {}",
                        function.split('(').next().unwrap(),
                        parameter.trim()
                    ));
                }
            }
        }
    }
    assert!(seen > 5_000, "only {seen} parameters were seen");
    assert_eq!(wrong, [""; 0]);
}

/// Pointers from and to the server stay inside `src/ffi`.
#[test]
fn no_pointer_leaves_the_border() {
    let hands = sources().into_iter().filter(|(name, _)| name.starts_with("src/"));
    for (name, text) in hands.filter(|(name, _)| !name.starts_with(BORDER)) {
        for mark in ["*mut ", "*const ", "NonNull", ".as_ptr()", "redis_module::raw;"] {
            assert!(!text.contains(mark), "{name} contains {mark}");
        }
    }
}

#[test]
fn nothing_is_left_for_later() {
    let marks =
        [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("dbg", "!("), concat!("#[ig", "nore]")];
    for (name, text) in sources() {
        for mark in marks {
            assert!(!text.contains(mark), "{name} contains {mark}");
        }
    }
}

/// A test that sleeps only hopes. A single place may wait between two looks.
#[test]
fn tests_do_not_sleep() {
    let sleeping: Vec<String> = sources()
        .into_iter()
        .filter(|(_, text)| text.contains(concat!("thread::", "sleep")))
        .map(|(name, _)| name)
        .collect();
    assert!(
        sleeping
            .iter()
            .all(|name| ["testkit/", "bench/"].iter().any(|place| name.starts_with(place))),
        "{sleeping:?}"
    );
}

/// A file that no program includes is not even compiled.
#[test]
fn every_file_of_tests_is_a_module_of_its_program() {
    for folder in ["core/tests", "engine/tests", "simulation/tests", "tests/server"] {
        let main = std::fs::read_to_string(root().join(folder).join("main.rs")).unwrap();
        let mut count = 0;
        for entry in root().join(folder).read_dir().unwrap() {
            let path = entry.unwrap().path();
            let is_module =
                path.extension().is_some_and(|ext| ext == "rs") || path.join("mod.rs").is_file();
            let name = path.file_stem().unwrap().to_str().unwrap();
            if !is_module || name == "main" {
                continue;
            }
            count += 1;
            let named = format!("mod {name};");
            assert!(main.lines().any(|line| line == named), "{folder}/main.rs lacks {named}");
        }
        assert!(count > 5, "{folder} has only {count} modules");
    }
}

/// `scripts/mutants.sh` makes each file a program of its own, with nothing but `support` beside it.
#[test]
fn no_file_of_tests_uses_another() {
    for (path, text) in sources_in(&["core/tests", "engine/tests"]) {
        let uses = text.lines().filter_map(|line| line.strip_prefix("use crate::"));
        for used in uses {
            assert!(used.starts_with("support"), "{path} uses {used}");
        }
    }
}
