//! Bytes that claim to be a lock or an effect: they are refused, or give a valid one.

use rlock_core::snapshot::{load, load_effects, save, save_effect};
use rlock_core::{Lock, Now};

use super::laws::{picture, readers_agree, well_formed};

/// The first byte selects which of the two; the rest is what a server would receive.
pub fn snapshot(data: &[u8]) {
    match data {
        [kind, bytes @ ..] if kind % 2 == 0 => a_value(bytes),
        [_, bytes @ ..] => an_effect(bytes),
        [] => {}
    }
}

fn a_value(bytes: &[u8]) {
    let Ok(lock) = load(bytes) else { return };
    is_sound(&lock);
    assert!(!lock.is_free(), "a lock without a hold was loaded");
    let mut saved = Vec::new();
    save(&lock, &mut saved);
    assert!(saved.len() <= bytes.len(), "what is saved is never longer: {saved:?}");
    assert_eq!(load(&saved).as_ref(), Ok(&lock));
}

/// The effect, applied to no lock, and then again to the result.
fn an_effect(bytes: &[u8]) {
    // The effects of two locks are two effects of one lock each.
    if let Ok(both) = load_effects(bytes, 2) {
        let mut saved = Vec::new();
        both.iter().for_each(|one| save_effect(one.start, &one.changes, &mut saved));
        assert_eq!(load_effects(&saved, 2).as_ref(), Ok(&both));
        assert!(load_effects(bytes, 1).is_err() && load_effects(bytes, 3).is_err());
    }
    let Ok(one) = load_effects(bytes, 1) else { return };
    let (effect, mut saved) = (&one[0], Vec::new());
    save_effect(effect.start, &effect.changes, &mut saved);
    assert!(saved.len() <= bytes.len(), "what is saved is never longer: {saved:?}");
    assert_eq!(load_effects(&saved, 1).as_ref(), Ok(&one));
    let mut lock = Lock::default();
    for change in effect.changes.iter().chain(&effect.changes) {
        lock.replay(change);
        is_sound(&lock);
    }
}

fn is_sound(lock: &Lock) {
    well_formed(lock);
    let holds = picture(lock);
    readers_agree(lock, &holds, Now::from_ms(0));
}
