//! Threads: one runtime for everything that is not a request, and one or several for requests.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::flags::RuntimeChoice;

/// Connections waiting to be accepted.
const BACKLOG: u32 = 4096;

/// The runtimes of a process. Dropping them ends their tasks.
#[derive(Debug)]
pub(crate) struct Runtimes {
    /// Registration, probes, sweeps, metrics, signals.
    control: Runtime,
    /// Requests.
    data: Vec<Runtime>,
}

impl Runtimes {
    /// Builds them for this machine's cores.
    pub(crate) fn build(layout: RuntimeChoice) -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // A runtime of one worker thread each keeps its clients on that thread.
        let (runtimes, threads) = match layout {
            RuntimeChoice::Shared => (1, cores),
            RuntimeChoice::PerCore => (cores, 1),
        };
        let data = (0..runtimes).map(|_| requests(threads)).collect::<io::Result<_>>()?;
        let control = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("control")
            .enable_all()
            .build()?;
        Ok(Self { control, data })
    }

    /// Where background work runs.
    pub(crate) fn control(&self) -> &Handle {
        self.control.handle()
    }

    /// Runs something on the control runtime to its end.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.control.block_on(work)
    }

    /// One listener for each data runtime, all on one address, and what to run there.
    pub(crate) fn listen(&self, address: SocketAddr) -> io::Result<Vec<(&Handle, TcpListener)>> {
        let several = self.data.len() > 1;
        let on = |runtime: &'_ Runtime| {
            let _guard = runtime.enter();
            listen(address, several)
        };
        self.data.iter().map(|runtime| Ok((runtime.handle(), on(runtime)?))).collect()
    }

    /// Ends everything without waiting for tasks that hang.
    pub(crate) fn end(self) {
        self.data.into_iter().for_each(Runtime::shutdown_background);
        self.control.shutdown_background();
    }
}

fn requests(threads: usize) -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(threads).thread_name("requests").enable_all().build()
}

/// Listens on an address; `shared` lets several sockets of this process listen there at once.
pub(crate) fn listen(address: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(shared)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
