//! Stories with times, one file for each subject: `support/story.rs` explains how to read and write
//! them.

use std::path::Path;

macro_rules! stories {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                let text = include_str!(concat!("stories/", stringify!($name), ".txt"));
                assert!(crate::support::story::run(stringify!($name), text) > 0, "no line was run");
            }
        )*
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

stories! {
    a_hold_is_over_at_its_deadline
    an_owner_enters_again
    an_upgrader_waits_in_front
    a_reader_upgrades_only_alone
    force_ends_holds
    limits_count_readers
    refusals_say_what_is_held
    release_goes_down_by_levels
    renewing_only_extends
    sending_again_is_safe
    sessions_last_as_connections
    take_passes_everybody
    tickets_keep_a_place
    ties_are_of_grants_that_stand
    tokens_only_rise
    waiting_in_line
    who_may_enter
    writers_downgrade
}

#[test]
fn every_story_file_is_told() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stories");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        assert!(NAMES.contains(&name.as_str()), "{name}.txt is not in the list of stories.rs");
    }
}
