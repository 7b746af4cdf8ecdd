//! Every history of a small world.

/// Every history of three steps, or of `RLOCK_STEPS`. A step is a number below `deeds * owners`;
/// its owner is `number / deeds`. Owners are interchangeable, so the second one acts only after the
/// first one has, and so on.
pub fn every_history(deeds: usize, owners: usize, mut play: impl FnMut(&[usize])) {
    let steps = std::env::var("RLOCK_STEPS").map_or(3, |steps| steps.parse().unwrap());
    let mut history = Vec::new();
    every_rest(deeds, owners, 0, steps, &mut history, &mut play);
}

fn every_rest(
    deeds: usize,
    owners: usize,
    acted: usize,
    steps: usize,
    history: &mut Vec<usize>,
    play: &mut impl FnMut(&[usize]),
) {
    if steps == 0 {
        return play(history);
    }
    for number in 0..deeds * owners.min(acted + 1) {
        history.push(number);
        let acted = acted.max(number / deeds + 1);
        every_rest(deeds, owners, acted, steps - 1, history, play);
        history.pop();
    }
}
