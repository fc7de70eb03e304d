//! One try of one file: ask, extract, announce, send, finish.

use std::fs::File;
use std::future::Future;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::upload_error::{UploadError, UploadFailure};
use super::{UploadResult, UploadServer, UploaderState, endpoint, signed_url};
use crate::native::byte_source::{ByteSource, RegularFile};
use crate::native::debug_files_to_upload::extract_debug_info::{ExtractedFile, SymbolSources, extract};
use crate::native::debug_files_to_upload::queue::UploadCandidate;
use crate::native::elf::ElfFile;
use crate::native::file_identity::FileStat;
use crate::native::function_symbols::mini_debug_info;
use crate::proto::debuginfo::debuginfo_service_client::DebuginfoServiceClient;
use crate::proto::debuginfo::upload_instructions::UploadStrategy;
use crate::proto::debuginfo::upload_request::Data;
use crate::proto::debuginfo::{
    BuildIdType, DebuginfoType, InitiateUploadRequest, MarkUploadFinishedRequest,
    ShouldInitiateUploadRequest, UploadInfo, UploadInstructions, UploadRequest,
};

/// Bytes of a file in one message; a few of them are in memory at a time.
const CHUNK: usize = 1 << 20;

const TYPE: i32 = DebuginfoType::DebuginfoUnspecified as i32;
const ID_TYPE: i32 = BuildIdType::Gnu as i32;

pub(super) struct UploadAttempt<'a> {
    pub(super) inner: &'a Arc<UploaderState>,
    pub(super) server: Arc<UploadServer>,
    pub(super) offer: &'a Arc<UploadCandidate>,
}

impl UploadAttempt<'_> {
    pub(super) async fn run(self) -> Result<UploadResult, UploadFailure> {
        let build_id = self.offer.build_id.to_string();
        // Without the hash, which isn't known before the file was read: most files aren't wanted.
        let question = ShouldInitiateUploadRequest {
            build_id: build_id.clone(),
            r#type: TYPE,
            build_id_type: ID_TYPE,
            ..ShouldInitiateUploadRequest::default()
        };
        let step = "asking whether a debug file is wanted";
        let request = self.request(question)?;
        let wanted =
            self.call(step, |mut client| async move { client.should_initiate_upload(request).await });
        let wanted = wanted.await?;
        if !wanted.should_initiate_upload {
            return Ok(UploadResult::NotWanted(wanted.reason));
        }
        let (offer, options) = (Arc::clone(self.offer), self.inner.options.clone());
        let made =
            tokio::task::spawn_blocking(move || prepare(&offer, options.max_bytes, options.exported_symbols));
        let made = made.await.map_err(|error| UploadError::Thread(error.to_string()))??;
        let Some((file, ExtractedFile { size, hash })) = made else {
            return Ok(UploadResult::WithoutSymbols);
        };
        let announcement = InitiateUploadRequest {
            build_id: build_id.clone(),
            size: i64::try_from(size).unwrap_or(i64::MAX),
            hash,
            force: false,
            r#type: TYPE,
            build_id_type: ID_TYPE,
        };
        let step = "announcing a debug file";
        let request = self.request(announcement)?;
        let answer = self.call(step, |mut client| async move { client.initiate_upload(request).await });
        let instructions = answer.await?.upload_instructions.ok_or(UploadError::Instructions)?;
        let upload_id = instructions.upload_id.clone();
        self.send(instructions, file, size).await?;
        let request = self.request(MarkUploadFinishedRequest { build_id, upload_id, r#type: TYPE })?;
        let step = "finishing the upload of a debug file";
        self.call(step, |mut client| async move { client.mark_upload_finished(request).await }).await?;
        Ok(UploadResult::Uploaded(size))
    }

    async fn send(
        &self,
        instructions: UploadInstructions,
        file: File,
        size: u64,
    ) -> Result<(), UploadFailure> {
        match instructions.upload_strategy() {
            UploadStrategy::Grpc => self.stream(instructions, file, size).await,
            UploadStrategy::SignedUrl => {
                let inner = Arc::clone(self.inner);
                let put = move || signed_url::put(&inner, &instructions.signed_url, file, size);
                let sent = tokio::task::spawn_blocking(put).await;
                Ok(sent.map_err(|error| UploadError::Thread(error.to_string()))??)
            }
            UploadStrategy::Unspecified => Err(UploadError::Instructions.into()),
        }
    }

    async fn stream(
        &self,
        instructions: UploadInstructions,
        file: File,
        size: u64,
    ) -> Result<(), UploadFailure> {
        let (sender, receiver) = mpsc::channel(2);
        let UploadInstructions { build_id, upload_id, .. } = instructions;
        let info = UploadInfo { build_id, upload_id, r#type: TYPE };
        let reading = tokio::spawn(send_chunks(Arc::clone(self.inner), info, file, sender));
        let request = self.request(ReceiverStream::new(receiver))?;
        let limit = self.inner.options.upload_timeout;
        let step = "sending a debug file";
        let call = self.call_within(step, limit, |mut client| async move { client.upload(request).await });
        let answer = call.await;
        // It ends by itself once nobody takes its pieces any more.
        let read = reading.await.map_err(|error| UploadError::Thread(error.to_string()))?;
        let received = answer?.size;
        read.map_err(UploadError::Read)?;
        match received == size {
            true => Ok(()),
            false => Err(UploadError::Short { sent: size, received }.into()),
        }
    }

    fn request<T>(&self, message: T) -> Result<Request<T>, UploadError> {
        let mut request = Request::new(message);
        *request.metadata_mut() = self.server.headers.clone();
        let token = endpoint::token(&self.server.options);
        if let Some(token) = token.map_err(|error| UploadError::Token(error.to_string()))? {
            request.metadata_mut().insert("authorization", token);
        }
        Ok(request)
    }

    async fn call<T, F>(
        &self,
        step: &'static str,
        call: impl FnOnce(DebuginfoServiceClient<Channel>) -> F,
    ) -> Result<T, UploadError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        self.call_within(step, self.inner.options.request_timeout, call).await
    }

    async fn call_within<T, F>(
        &self,
        step: &'static str,
        limit: Duration,
        call: impl FnOnce(DebuginfoServiceClient<Channel>) -> F,
    ) -> Result<T, UploadError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let client = DebuginfoServiceClient::new(self.server.channel.clone());
        match tokio::time::timeout(limit, call(client)).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(UploadError::Status { step, status: Box::new(status) }),
            Err(_) => Err(UploadError::TimedOut { step, limit }),
        }
    }
}

/// Sends the pieces of a file, as fast as they are taken and the options allow.
async fn send_chunks(
    inner: Arc<UploaderState>,
    info: UploadInfo,
    mut file: File,
    sender: mpsc::Sender<UploadRequest>,
) -> std::io::Result<()> {
    let mut next = Some(Data::Info(info));
    while let Some(data) = next {
        if sender.send(UploadRequest { data: Some(data) }).await.is_err() {
            return Ok(());
        }
        // A piece of a file in the page cache: not worth a thread.
        let mut piece = Vec::with_capacity(CHUNK);
        (&mut file).take(CHUNK as u64).read_to_end(&mut piece)?;
        tokio::time::sleep(inner.bandwidth.delay(piece.len() as u64)).await;
        next = (!piece.is_empty()).then(|| Data::ChunkData(Bytes::from(piece)));
    }
    Ok(())
}

/// The file to send, at its start; `None` if it would be of no use. Blocking.
fn prepare(
    offer: &UploadCandidate,
    max_bytes: u64,
    exported_symbols: bool,
) -> Result<Option<(File, ExtractedFile)>, UploadError> {
    let regular = |file| RegularFile::new(file).map_err(UploadError::Read);
    let stat = |file| FileStat::of(file).map_err(UploadError::Read);
    let before = stat(&offer.file)?;
    let elf = |error| {
        UploadError::Extract(crate::native::debug_files_to_upload::extract_debug_info::ExtractError::Elf(
            error,
        ))
    };
    let program = ElfFile::parse(regular(&offer.file)?).map_err(elf)?;
    // Under that build id a server would name the whole fleet's frames by it.
    if program.build_id() != Some(offer.build_id) {
        return Err(UploadError::OtherBuild);
    }
    let source = SymbolSource { program: &program, max_bytes, exported_symbols };
    let own = SymbolSources::of(&program);
    let made = match &offer.debug {
        _ if own.symtab && own.dwarf => source.extract_to_file(&program)?,
        None if own.symtab => source.extract_to_file(&program)?,
        Some(debug) => source.extract_to_file(&ElfFile::parse(regular(&debug.file)?).map_err(elf)?)?,
        None => match mini_debug_info(&program).map_err(elf)? {
            Some(image) => source.extract_to_file(&ElfFile::parse(&*image).map_err(elf)?)?,
            None => source.extract_to_file(&program)?,
        },
    };
    let is_same_debug = match &offer.debug {
        Some(debug) => stat(&debug.file)? == debug.stat,
        None => true,
    };
    match is_same_debug && stat(&offer.file)? == before {
        true => Ok(made),
        false => Err(UploadError::Changed),
    }
}

struct SymbolSource<'a, P> {
    program: &'a ElfFile<P>,
    max_bytes: u64,
    exported_symbols: bool,
}

impl<P: ByteSource> SymbolSource<'_, P> {
    fn extract_to_file<S: ByteSource>(
        &self,
        symbols: &ElfFile<S>,
    ) -> Result<Option<(File, ExtractedFile)>, UploadError> {
        let sources = SymbolSources::of(symbols);
        let is_useful =
            sources.symtab || sources.dwarf || sources.gopclntab || (self.exported_symbols && sources.dynsym);
        if !is_useful {
            return Ok(None);
        }
        // Unlinked from the start: nothing is left of it whatever happens.
        let mut file = tempfile::tempfile().map_err(UploadError::Read)?;
        let mut buffered = std::io::BufWriter::new(&mut file);
        let extracted = extract(self.program, symbols, self.max_bytes, &mut buffered)?;
        buffered.into_inner().map_err(|error| UploadError::Read(error.into_error()))?;
        file.seek(SeekFrom::Start(0)).map_err(UploadError::Read)?;
        Ok(Some((file, extracted)))
    }
}
