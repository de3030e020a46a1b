use std::collections::HashMap;

use super::*;

/// A store in memory whose behaviour a test sets.
#[derive(Debug, Default)]
struct Fake {
    pins: Mutex<HashMap<String, String>>,
    manner: Mutex<Manner>,
    asked: Mutex<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Manner {
    #[default]
    Answers,
    Hangs,
    Fails(Fault),
}

impl Fake {
    fn answer<'a, T: Send + 'a>(
        &'a self,
        work: impl FnOnce(&mut HashMap<String, String>) -> T + Send + 'a,
    ) -> Answer<'a, T> {
        Box::pin(async move {
            *self.asked.lock().unwrap() += 1;
            let manner = *self.manner.lock().unwrap();
            match manner {
                Manner::Answers => Ok(work(&mut self.pins.lock().unwrap())),
                Manner::Fails(fault) => Err(fault),
                Manner::Hangs => std::future::pending().await,
            }
        })
    }

    fn behave(&self, manner: Manner) {
        *self.manner.lock().unwrap() = manner;
    }

    fn asked(&self) -> u32 {
        *self.asked.lock().unwrap()
    }
}

impl Store for Fake {
    fn claim<'a>(&'a self, name: &'a Name, address: &'a str, _: bool) -> Answer<'a, Met> {
        self.answer(move |pins| {
            let ours = !pins.contains_key(&name.to_string());
            let pinned = pins.entry(name.to_string()).or_insert_with(|| address.to_owned());
            Met { address: pinned.clone(), ours }
        })
    }

    fn shift<'a>(&'a self, name: &'a Name, from: &'a str, to: &'a str) -> Answer<'a, Met> {
        self.answer(move |pins| {
            let pinned = pins.entry(name.to_string()).or_insert_with(|| from.to_owned());
            let ours = pinned == from;
            if ours {
                to.clone_into(pinned);
            }
            Met { address: pinned.clone(), ours }
        })
    }

    fn look<'a>(&'a self, name: &'a Name) -> Answer<'a, Option<String>> {
        self.answer(move |pins| pins.get(&name.to_string()).cloned())
    }
}

fn shared(store: &Arc<Fake>) -> (Arc<Shared>, Renewals) {
    let meters = crate::telemetry::Meters::new(&[1.0]).unwrap();
    Shared::new(Parts {
        store: Arc::<Fake>::clone(store),
        copies: Arc::default(),
        secret: None,
        deadline: Duration::from_millis(50),
        meters: meters.store,
        clock: Clock::start(),
    })
}

fn met(address: &str, ours: bool) -> Option<Met> {
    Some(Met { address: address.to_owned(), ours })
}

#[tokio::test(start_paused = true)]
async fn two_replicas_that_claim_at_once_agree() {
    let store = Arc::new(Fake::default());
    let ((one, _), (other, _)) = (shared(&store), shared(&store));
    let name = one.name("m", b"k");
    assert_eq!(name, other.name("m", b"k"), "replicas name a key alike");
    assert_eq!(one.claim(&name, "a:1").await, met("a:1", true));
    assert_eq!(other.claim(&name, "b:1").await, met("a:1", false));
    // The second mover adopts what the first one did.
    assert_eq!(one.shift(&name, "a:1", "c:1").await, met("c:1", true));
    assert_eq!(other.shift(&name, "a:1", "d:1").await, met("c:1", false));
}

#[tokio::test(start_paused = true)]
async fn a_warm_key_asks_nobody() {
    let store = Arc::new(Fake::default());
    let (shared, _renewals) = shared(&store);
    let name = shared.name("m", b"k");
    assert_eq!(shared.remembered(&name), None);
    shared.claim(&name, "a:1").await;
    for _ in 0..5 {
        assert_eq!(shared.remembered(&name).as_deref(), Some("a:1"));
        assert_eq!(shared.look(&name).await.as_deref(), Some("a:1"));
    }
    assert_eq!(store.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_finds_another_worker_adopts_it() {
    let store = Arc::new(Fake::default());
    let (shared, renewals) = shared(&store);
    let name = shared.name("m", b"k");
    shared.claim(&name, "a:1").await;
    store.pins.lock().unwrap().insert(name.to_string(), "b:1".to_owned());
    tokio::time::advance(RENEWAL).await;
    assert_eq!(shared.remembered(&name).as_deref(), Some("a:1"), "nobody has told yet");
    let renewing = Arc::clone(&shared);
    // Ends with the last sender, which it holds itself: it is let go with the test.
    let task = tokio::spawn(async move { renewing.renew(renewals).await });
    while shared.remembered(&name).as_deref() != Some("b:1") {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.asked(), 2);
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_the_deadline_and_soon_nobody_waits_at_all() {
    let store = Arc::new(Fake::default());
    let (shared, _renewals) = shared(&store);
    let name = shared.name("m", b"k");
    store.behave(Manner::Hangs);
    let waited = async || {
        let begun = Instant::now();
        assert_eq!(shared.claim(&name, "a:1").await, None);
        begun.elapsed().as_millis()
    };
    for wait in [50, 50, 50, 0, 0] {
        assert_eq!(waited().await, wait);
    }
    // One in a second finds out whether it is back.
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!((waited().await, waited().await), (50, 0));
    store.behave(Manner::Answers);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(shared.claim(&name, "a:1").await, met("a:1", true));
    assert_eq!(shared.claim(&name, "b:1").await, met("a:1", false));
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_dropped_is_given_back() {
    let store = Arc::new(Fake::default());
    let (shared, _renewals) = shared(&store);
    let name = shared.name("m", b"k");
    store.behave(Manner::Hangs);
    for _ in 0..3 {
        shared.claim(&name, "a:1").await;
    }
    tokio::time::advance(Duration::from_secs(1)).await;
    // Its client goes away after a moment.
    let gone = timeout(Duration::from_millis(1), shared.claim(&name, "a:1")).await;
    assert!(gone.is_err());
    store.behave(Manner::Answers);
    assert_eq!(shared.claim(&name, "a:1").await, met("a:1", true));
}

#[tokio::test(start_paused = true)]
async fn an_error_or_a_missing_connection_costs_no_time_and_opens_nothing() {
    let store = Arc::new(Fake::default());
    let (shared, _renewals) = shared(&store);
    let name = shared.name("m", b"k");
    for fault in [Fault::Away, Fault::Error] {
        store.behave(Manner::Fails(fault));
        for _ in 0..10 {
            assert_eq!(shared.claim(&name, "a:1").await, None);
        }
    }
    assert_eq!(store.asked(), 20);
    store.behave(Manner::Answers);
    assert!(shared.claim(&name, "a:1").await.is_some());
}

#[test]
fn a_name_shows_no_key_and_depends_on_model_and_secret() {
    let store = Arc::new(Fake::default());
    let (open, _) = shared(&store);
    let name = open.name("m", b"agent-run-8f3c2a");
    let text = name.to_string();
    assert!(text.starts_with("smg:pin:") && !text.contains("agent"), "{text}");
    assert_eq!(Name::read(text.as_bytes()), Some(name.clone()));
    for other in [open.name("n", b"agent-run-8f3c2a"), open.name("ma", b"gent-run-8f3c2a")] {
        assert_ne!(name, other);
    }
    assert_eq!(Name::read(b"smg:pin:short"), None);
    assert_eq!(Name::read(b"pin"), None);
}
